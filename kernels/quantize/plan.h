/* What is asked of the quantizer: fields of a BlockFormat, how the matrix is turned, what to write.
 * native.py fills it in. Rows, columns, blocks and the pair (a, b) of a block's numbers are those of
 * the matrix as it is stored, also when its transpose is quantized. */
#ifndef FP4LAB_PLAN_H
#define FP4LAB_PLAN_H

#include "../hadamard/cpu.h"
#include "../minifloat/cpu.h"
#include "../philox/cpu.h"

enum { RULE_NEAREST, RULE_FLOOR, RULE_CEIL, RULE_ROUND_UP, RULE_EVEN };
enum { FOLDED, DIVIDED, POWER_OF_TWO, ENCODE, UNSCALED };
enum { LEVEL_NONE, LEVEL_TENSOR, LEVEL_ROW };
enum { SELECT_NONE, SELECT_MAE, SELECT_MSE };
enum { ELEMENTS, OPERAND, DEQUANTIZED };

typedef struct {
    const void *data;
    int64_t rows, columns, stride; /* numbers from one row to the next; columns are adjacent */
    int32_t dtype, threads;
} matrix_t;

typedef struct {
    int64_t block_rows, block_columns; /* 0: the whole extent */
    element_t element, scale, precision;
    int32_t scale_rule, block_scale, level, selection, transposed, keep_negative_zero;
    float scale_floor, zero_scale, even_limit;
    double target, amax_factor; /* M, and C * M or 1 */
    hadamard_t hadamard;        /* no matrix: no transform */
    noise_t noise;
    int32_t has_amax, result, dtype, turned, packed; /* turned: results are written transposed */
    const int64_t *row_ids;
    float *amax;                       /* second level, in or out */
    float *decode;                     /* block scales as float32, or NULL */
    uint8_t *scale_codes;              /* and as bytes, or NULL */
    int64_t scale_strides[2];          /* from a to a + 1, from b to b + 1 */
    void *values;                      /* element values times what `result` says, or NULL */
    uint8_t *codes;                    /* element codes, or NULL */
} plan_t;

/* a part of the matrix that one thread works on at a time; `ahead` numbers on lies the next one */
typedef struct { int64_t row, column, rows, columns, ahead; } tile_t;

#endif
