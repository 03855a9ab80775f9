/* Up to how many rows multiply_few_rows pays on this processor, 0 if it cannot run there. To be called before it. */
int most_few_rows(void);

/* y = alpha x w^T + beta y, for x [rows, in], w [out, in] and y [rows, out]. x_row, w_row and y_row are the numbers from
   the beginning of a row to that of the next one. */
void multiply_few_rows(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w, int w_row,
                       float beta, float *y, int y_row);
