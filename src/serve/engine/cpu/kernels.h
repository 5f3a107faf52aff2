// The kernels of one instruction set, as a table that is chosen when the program starts.
//
// Every kernel computes each row (token) and each column by itself, in a fixed order: sums over K
// run from the first element to the last in one accumulator a column, whatever the number of rows.
// So a row's bits do not depend on the batch. They do depend on the instruction set: multiply-adds
// are fused on all but "portable", and avx512_bf16 multiplies pairs of bfloat16 (see
// docs/serving-engine.md). int8 products are exact integers, the same everywhere.
//
// No LibTorch here, and no inline functions of the standard library in the files compiled for an
// instruction set: the linker could take their code for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace laplace::cpu {

enum class WeightType { kFloat32, kBfloat16, kInt8, kInt4 };
inline constexpr int kWeightTypes = 4;

// What becomes of a finished row of products.
enum class Epilogue {
  kStore,   // out[r][c] = y
  kAdd,     // out[r][c] += y
  kSwiglu,  // panels hold as many gate as up columns: out[r][c] = SiLU(gate) * up
};

// y [m,N] = x [m,K] W^T for some panels (column blocks) of W.
struct GemmArgs {
  const std::byte* weights;  // packed panels, one behind the other
  int64_t panel_bytes;
  const float* scales;    // int8: [panels * width]
  int64_t columns;        // of `out`; panels may hold padding behind
  int64_t steps;          // K in units of a step
  const std::byte* x;     // prepared rows
  int64_t x_stride;       // bytes
  const float* x_scales;  // int8: [m]
  int64_t m;
  Epilogue epilogue;
  float* out;
  int64_t out_stride;  // floats
};

struct Gemm {
  int64_t width;         // columns of a panel
  int64_t step;          // elements of K in one step; K is padded with zeros to a multiple
  int64_t step_bytes;    // of a panel's weights
  int64_t header_bytes;  // at a panel's beginning
  int64_t x_step_bytes;
  int64_t group;  // panels that are best done together
  // Packs `width` rows of W, [K] floats each (null: zeros), into a panel; scales [width] for int8.
  void (*pack)(const float* const* rows, int64_t k, std::byte* panel, float* scales);
  // One row of x [k] as run() reads it; null: as it is, float32. `scale`: int8 only.
  void (*prepare)(const float* x, int64_t k, std::byte* out, float* scale);
  // Panels [first, last). scratch: scratch_bytes(m) of the calling thread's own.
  void (*run)(const GemmArgs& args, int64_t first, int64_t last, std::byte* scratch);

  int64_t steps_of(int64_t k) const { return (k + step - 1) / step; }
  int64_t panel_bytes(int64_t k) const { return header_bytes + steps_of(k) * step_bytes; }
  int64_t scratch_bytes(int64_t m) const { return group * m * width * 4; }
};

// One head's tokens of one sequence, in order: recurrence, self-augmentation, norm, gate.
struct GlaArgs {
  const float* qkvg;  // [tokens, stride], this head's q; k, v, g at the offsets below
  int64_t k_offset, v_offset, g_offset;
  int64_t stride;
  float* y;  // [tokens, y_stride], this head's
  int64_t y_stride;
  int64_t tokens, dk, dv;
  float fade;   // exp(log_decay) - 1
  float scale;  // dk^-1/2
  float eps;
  const float* aug;   // [dk]
  const float* norm;  // [dv]
  float* S;           // [dk, dv], updated
  float* scratch;     // dk + dv floats
};

struct Kernels {
  const char* name;
  Gemm gemm[kWeightTypes];  // by WeightType
  // y [n] = (x - mean) / sqrt(var + eps) * weight
  void (*layer_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  // y [n] = SiLU( sum_j weight[j][n] * inputs[j][n] ), j = 0 .. taps - 1
  void (*conv)(const float* const* inputs, const float* weight, int64_t taps, int64_t n, float* y);
  void (*gla)(const GlaArgs& args);
  float (*largest)(const float* x, int64_t n);  // NaN where one is, and beside both infinities
  // scores = (x - shift) scale, weights = exp(scores); exp of less than -87 is 0
  void (*soften)(const float* x, int64_t n, float shift, float scale, float* scores,
                 float* weights);
  // sum of exp(x - shift), in float64
  double (*sum_exp)(const float* x, int64_t n, float shift);
};

const Kernels& portable_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif

// Those this processor can run, the best last.
std::vector<const Kernels*> available_kernels();
// The best, or what the environment variable LAPLACE_CPU names ("portable", "avx2", "avx512",
// "avx512_bf16"). Throws Error(kBadInput) when that is unknown or this processor cannot run it.
const Kernels& chosen_kernels();
// True where bfloat16 products are multiplied natively.
bool has_bfloat16_products(const Kernels& kernels);

}  // namespace laplace::cpu
