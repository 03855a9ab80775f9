/* An extension of MLX: operations of its CPU backend that are computed by C functions. See operations.h.

   This is MLX's own way to add an operation: a Primitive, which becomes a node of the lazy graph and is computed by the
   stream it was made for. */

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <limits>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "mlx/utils.h"
#include "mlx/version.h"

extern "C" {
#include "operations.h"
}

namespace nb = nanobind;
namespace mx = mlx::core;

namespace {

/* name: as pictures of a graph show it. compute: the C function. plain: the same in Python, of which MLX derives
   gradients and vectorized forms. */
struct Operation {
  std::string name;
  operation_t *compute;
  nb::object plain;
};

/* An input, as it is when it is read: by then, the array itself may be gone, but not its memory. */
class Input {
  bool are_floats;
  const void *data;
  mx::Shape shape;
  mx::Strides strides;
  std::vector<float> copy;

 public:
  explicit Input(const mx::array &x)
      : are_floats(x.dtype() == mx::float32), data(x.data<void>()), shape(x.shape()), strides(x.strides()) {}

  /* Floats as operations.h promises them: copied where their places are others. */
  operand read() {
    int last = static_cast<int>(shape.size()) - 1;
    if (last > 0 && shape[last - 1] <= 1)
      strides[last - 1] = shape[last]; /* the distance of a single row from the next may be anything */
    if (are_floats && last >= 0 && !are_rows_in_order(last)) {
      size_t size = 1;
      for (auto length : shape)
        size *= length;
      copy.resize(size);
      for (size_t i = 0; i < size; i++)
        copy[i] = static_cast<const float *>(data)[mx::elem_to_loc(i, shape, strides)];
      data = copy.data();
      int64_t stride = 1;
      for (int axis = last; axis >= 0; stride *= shape[axis--])
        strides[axis] = stride;
    }
    return {data, static_cast<int>(shape.size()), shape.data(), strides.data()};
  }

 private:
  bool are_rows_in_order(int last) const {
    if (shape[last] > 1 && strides[last] != 1)
      return false;
    return last == 0 || (strides[last - 1] >= shape[last] && strides[last - 1] <= std::numeric_limits<int>::max());
  }
};

class Call : public mx::Primitive {
 public:
  Call(mx::Stream stream, const Operation *operation, std::vector<float> numbers)
      : Primitive(stream), operation_(operation), numbers_(std::move(numbers)) {}

  void eval_cpu(const std::vector<mx::array> &inputs, std::vector<mx::array> &outputs) override {
    auto &out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    std::vector<Input> in(inputs.begin(), inputs.end());
    mx::cpu::get_command_encoder(stream()).dispatch(
        [compute = operation_->compute, numbers = numbers_, in, to = out.data<float>()]() mutable {
          std::vector<operand> operands;
          for (auto &x : in)
            operands.push_back(x.read());
          compute(operands.data(), to, numbers.data());
        });
  }

  void eval_gpu(const std::vector<mx::array> &, std::vector<mx::array> &) override {
    throw std::runtime_error("this operation is for the CPU backend only");
  }

  std::vector<mx::array> vjp(const std::vector<mx::array> &primals, const std::vector<mx::array> &cotangents,
                             const std::vector<int> &argnums, const std::vector<mx::array> &) override {
    auto all = mx::vjp(plain(), primals, cotangents).second;
    std::vector<mx::array> asked;
    for (int argnum : argnums)
      asked.push_back(all[argnum]);
    return asked;
  }

  std::vector<mx::array> jvp(const std::vector<mx::array> &primals, const std::vector<mx::array> &tangents,
                             const std::vector<int> &argnums) override {
    std::vector<mx::array> all;
    for (auto &x : primals)
      all.push_back(mx::zeros_like(x));
    for (size_t i = 0; i < argnums.size(); i++)
      all[argnums[i]] = tangents[i];
    return mx::jvp(plain(), primals, all).second;
  }

  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array> &inputs,
                                                           const std::vector<int> &axes) override {
    return {mx::vmap(plain(), axes, {0})(inputs), {0}};
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array> &inputs) override {
    return {plain()(inputs)[0].shape()};
  }

  const char *name() const override { return operation_->name.c_str(); }

 private:
  std::function<std::vector<mx::array>(const std::vector<mx::array> &)> plain() {
    return [this](const std::vector<mx::array> &inputs) {
      nb::gil_scoped_acquire gil;
      return std::vector<mx::array>{nb::cast<mx::array>(operation_->plain(inputs, numbers_))};
    };
  }

  const Operation *operation_;
  std::vector<float> numbers_;
};

} // namespace

NB_MODULE(_mlx_extension, module) {
  module.attr("mlx_version") = std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
                               std::to_string(MLX_VERSION_PATCH);
  nb::class_<Operation>(module, "Operation")
      .def("__call__", [](const Operation &self, std::vector<mx::array> inputs, std::vector<int> shape,
                          std::vector<float> numbers) {
        auto call = std::make_shared<Call>(mx::to_stream({}), &self, std::move(numbers));
        return mx::array(mx::Shape(shape.begin(), shape.end()), mx::float32, std::move(call), std::move(inputs));
      });
  /* Never destroyed: a graph may outlive Python's own objects. */
  module.def(
      "make",
      [](std::string name, size_t address, nb::object plain) {
        return new Operation{std::move(name), reinterpret_cast<operation_t *>(address), std::move(plain)};
      },
      nb::rv_policy::reference);
}
