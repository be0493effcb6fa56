/* Four-bit codes in groups of 64: of a few ranges, the group's own and narrower ones, that whose squared error is the smallest. */
#include "team.h"

#define GROUP 64
#define VECS (GROUP / LANES)

INLINE float group_error(const vec *w, const vec *cares, float offset, float scale, vec *codes) {
  const vec step = v_all(scale > 0.0f ? 1.0f / scale : 1.0f), from = v_all(-offset);
  vec error = v_zero();
UNROLL
  for (int i = 0; i < VECS; i++) {
    codes[i] = v_min(v_max(v_floor(v_add(v_mul(v_add(w[i], from), step), v_all(0.5f))), v_zero()), v_all(15.0f));
    const vec off = v_add(v_fma(codes[i], v_all(scale), v_all(offset)), v_mul(w[i], v_all(-1.0f)));
    error = v_fma(v_mul(off, off), cares[i], error);
  }
  return v_sum(error);
}

/* codes: [outputs, 32 groups]; scales: [outputs, 2 groups], scales before offsets. factors and shares: `tries` narrower ranges. */
int specdec_int4(const float *weight, const float *importance, int64_t outputs, int64_t inputs, const float *factors, const float *shares, int tries,
                 uint8_t *codes, float *scales, int threads) {
  const int64_t groups = (inputs + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < outputs; r++)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t left = inputs - g * GROUP < GROUP ? inputs - g * GROUP : GROUP;
      float own[GROUP] = {0}, care[GROUP] = {0};
      memcpy(own, weight + r * inputs + g * GROUP, sizeof(float) * left);
      for (int64_t i = 0; i < left; i++) care[i] = importance ? importance[g * GROUP + i] : 1.0f;
      vec w[VECS], cares[VECS], tried[VECS], best[VECS];
      vec low = v_load(own), high = v_load(own);
      for (int i = 0; i < VECS; i++) {
        w[i] = v_load(own + LANES * i), cares[i] = v_load(care + LANES * i);
        low = v_min(low, w[i]), high = v_max(high, w[i]);
      }
      const float least = -v_most(v_mul(low, v_all(-1.0f))), range = v_most(high) - least;
      float scale = range / 15.0f, offset = least, error = group_error(w, cares, offset, scale, best);
      for (int t = 0; t < tries; t++) {
        const float narrow = range * factors[t] / 15.0f, from = least + range * (1.0f - factors[t]) * shares[t];
        const float other = group_error(w, cares, from, narrow, tried);
        if (other < error) {
          error = other, scale = narrow, offset = from;
          memcpy(best, tried, sizeof best);
        }
      }
      int8_t code[GROUP];
      for (int i = 0; i < VECS; i++) v_to_bytes(best[i], code + LANES * i);
      for (int i = 0; i < GROUP / 2; i++) codes[(r * groups + g) * 32 + i] = (uint8_t)(code[i] | code[i + 32] << 4);
      scales[r * 2 * groups + g] = scale, scales[r * 2 * groups + groups + g] = offset;
    }
  return 0;
}
