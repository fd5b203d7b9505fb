/* The functions of BLAS that MLX calls, by those of the wheel scipy-openblas32. */
#define FORWARD(NAME, SCALAR) \
  void scipy_##NAME(int, int, int, int, int, int, SCALAR, const void *, int, const void *, int, \
                    SCALAR, void *, int); \
  void NAME(int order, int turn_a, int turn_b, int m, int n, int k, SCALAR alpha, const void *a, \
            int lda, const void *b, int ldb, SCALAR beta, void *c, int ldc) { \
    scipy_##NAME(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); \
  }
FORWARD(cblas_sgemm, float)
FORWARD(cblas_dgemm, double)
FORWARD(cblas_cgemm, const void *)
