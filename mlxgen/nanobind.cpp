/* The part of nanobind that an extension is compiled with. */

#include <nb_combined.cpp>
