/* Up to how many rows both of the others pay on this processor, 0 if they cannot run there. To be called before them.
   multiply_few_rows_out_in pays for twice as many, unless the rows are short. */
int most_few_rows(void);

/* y = alpha x w + beta y, for x [rows, in], w [in, out] and y [rows, out]. x_row and y_row are the numbers from the
   beginning of a row to that of the next one, w_row the same in memory, where w lies as the function's name says. */
void multiply_few_rows_out_in(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row);
void multiply_few_rows_in_out(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row);
