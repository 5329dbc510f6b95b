/* Vectors of some rows of a panel, for each kind of processor: codes, 4 columns of each row, and whole and real numbers,
   one of each row.

   DOTS says that there is an instruction for products of 4 columns, `dots_of` for those of 16, and UNSIGNED that it
   takes codes without a sign; else sums of pairs of products have 16 bits.  MATRIX_DOTS says that there is one for two
   inputs at once.  PLAIN C has vectors of 4 rows. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"
#include "blocks.h"

#if defined(__AVX512BW__) && defined(__FMA__) && !defined(PLAIN)
#define SIDE 16 /* rows of a panel in a vector */
typedef __m512i Codes;
typedef __m512i Counts;
typedef __m512 Reals;
INLINE Codes codes_in(const void *at) { return _mm512_loadu_si512(at); }
INLINE Codes code_of(int8_t code) { return _mm512_set1_epi8(code); }
INLINE Codes masked(Codes codes, Codes mask) { return _mm512_and_si512(codes, mask); }
INLINE Codes joined(Codes low, Codes high) { return _mm512_or_si512(low, high); }
INLINE Codes raised(Codes codes, int bits) { return bits ? _mm512_slli_epi16(codes, bits) : codes; }
INLINE Codes lowered(Codes codes, int bits) { return bits ? _mm512_srli_epi16(codes, bits) : codes; }
INLINE Codes looked_up(Codes codes) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)NONLINEAR)), codes);
}
INLINE Counts count_of(int32_t count) { return _mm512_set1_epi32(count); }
INLINE Counts shifted(Counts a, int bits) { return _mm512_slli_epi32(a, bits); }
INLINE Reals real_of(float real) { return _mm512_set1_ps(real); }
INLINE Reals reals_in(const float *at) { return _mm512_loadu_ps(at); }
INLINE Reals reals_of(Counts counts) { return _mm512_cvtepi32_ps(counts); }
INLINE Reals halves_in(const void *at) { return _mm512_cvtph_ps(_mm256_loadu_si256(at)); }
INLINE Reals brains_in(const void *at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16));
}
INLINE Reals unsigned_in(const void *at) { return reals_of(_mm512_cvtepu8_epi32(_mm_loadu_si128(at))); }
INLINE Reals signed_in(const void *at) { return reals_of(_mm512_cvtepi8_epi32(_mm_loadu_si128(at))); }
INLINE Reals product(Reals a, Reals b) { return _mm512_mul_ps(a, b); }
INLINE Reals sum_with(Reals a, Reals b, Reals c) { return _mm512_fmadd_ps(a, b, c); }
INLINE void keep_reals(float *at, Reals reals) { _mm512_storeu_ps(at, reals); }
INLINE Counts sizes_of(Reals reals) {
    return _mm512_and_si512(_mm512_castps_si512(reals), _mm512_set1_epi32(INT32_MAX));
}
INLINE Counts added(Counts a, Counts b) { return _mm512_add_epi32(a, b); }
INLINE Counts larger(Counts a, Counts b) { return _mm512_max_epi32(a, b); }
INLINE int32_t largest_in(Counts counts) { return _mm512_reduce_max_epi32(counts); }
INLINE int32_t total_in(Counts counts) { return _mm512_reduce_add_epi32(counts); }
INLINE Counts nearest_to(Reals reals) { return _mm512_cvtps_epi32(reals); }
INLINE void keep_bytes(void *at, Counts counts) { _mm_storeu_si128(at, _mm512_cvtepi32_epi8(counts)); }
#ifdef __AVX512VNNI__
#define DOTS
#define UNSIGNED
INLINE Counts dots_of(Counts counts, const Codes *codes, const int32_t *x) {
    for (int j = 0; j < 4; j++) counts = _mm512_dpbusd_epi32(counts, codes[j], _mm512_set1_epi32(x[j]));
    return counts;
}
#else
typedef __m512i Pairs;
#define PAIRS_OF(codes, x) _mm512_maddubs_epi16(codes, _mm512_set1_epi32(x))
#define PAIRS_ADDED(a, b) _mm512_add_epi16(a, b)
#define PAIRS_COUNTED(counts, pairs) \
    _mm512_add_epi32(counts, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
INLINE Pairs signed_pairs(Codes codes, int32_t x) {
    __m512i all = _mm512_set1_epi32(x);
    __m512i same = _mm512_mask_sub_epi8(all, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), all);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(codes), same);
}
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(PLAIN)
#define SIDE 8
typedef __m256i Codes;
typedef __m256i Counts;
typedef __m256 Reals;
INLINE Codes codes_in(const void *at) { return _mm256_loadu_si256(at); }
INLINE Codes code_of(int8_t code) { return _mm256_set1_epi8(code); }
INLINE Codes masked(Codes codes, Codes mask) { return _mm256_and_si256(codes, mask); }
INLINE Codes joined(Codes low, Codes high) { return _mm256_or_si256(low, high); }
INLINE Codes raised(Codes codes, int bits) { return bits ? _mm256_slli_epi16(codes, bits) : codes; }
INLINE Codes lowered(Codes codes, int bits) { return bits ? _mm256_srli_epi16(codes, bits) : codes; }
INLINE Codes looked_up(Codes codes) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)NONLINEAR)), codes);
}
INLINE Counts count_of(int32_t count) { return _mm256_set1_epi32(count); }
INLINE Counts shifted(Counts a, int bits) { return _mm256_slli_epi32(a, bits); }
INLINE Reals real_of(float real) { return _mm256_set1_ps(real); }
INLINE Reals reals_in(const float *at) { return _mm256_loadu_ps(at); }
INLINE Reals reals_of(Counts counts) { return _mm256_cvtepi32_ps(counts); }
INLINE Reals halves_in(const void *at) { return _mm256_cvtph_ps(_mm_loadu_si128(at)); }
INLINE Reals brains_in(const void *at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
}
INLINE Reals unsigned_in(const void *at) { return reals_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at))); }
INLINE Reals signed_in(const void *at) { return reals_of(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at))); }
INLINE Reals product(Reals a, Reals b) { return _mm256_mul_ps(a, b); }
INLINE Reals sum_with(Reals a, Reals b, Reals c) { return _mm256_fmadd_ps(a, b, c); }
INLINE void keep_reals(float *at, Reals reals) { _mm256_storeu_ps(at, reals); }
INLINE Counts sizes_of(Reals reals) {
    return _mm256_and_si256(_mm256_castps_si256(reals), _mm256_set1_epi32(INT32_MAX));
}
INLINE Counts added(Counts a, Counts b) { return _mm256_add_epi32(a, b); }
INLINE Counts larger(Counts a, Counts b) { return _mm256_max_epi32(a, b); }
INLINE int32_t largest_in(Counts counts) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(counts), _mm256_extracti128_si256(counts, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
INLINE int32_t total_in(Counts counts) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(counts), _mm256_extracti128_si256(counts, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
INLINE Counts nearest_to(Reals reals) { return _mm256_cvtps_epi32(reals); }
INLINE void keep_bytes(void *at, Counts counts) {
    __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(counts), _mm256_extracti128_si256(counts, 1));
    _mm_storel_epi64(at, _mm_packs_epi16(pairs, pairs));
}
#ifdef __AVXVNNI__
#define DOTS
#define UNSIGNED
INLINE Counts dots_of(Counts counts, const Codes *codes, const int32_t *x) {
    for (int j = 0; j < 4; j++) counts = _mm256_dpbusd_avx_epi32(counts, codes[j], _mm256_set1_epi32(x[j]));
    return counts;
}
#else
typedef __m256i Pairs;
#define PAIRS_OF(codes, x) _mm256_maddubs_epi16(codes, _mm256_set1_epi32(x))
#define PAIRS_ADDED(a, b) _mm256_add_epi16(a, b)
#define PAIRS_COUNTED(counts, pairs) \
    _mm256_add_epi32(counts, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
INLINE Pairs signed_pairs(Codes codes, int32_t x) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(_mm256_set1_epi32(x), codes));
}
#endif
#elif defined(__ARM_FEATURE_DOTPROD) && !defined(PLAIN)
#define SIDE 4
typedef uint8x16_t Codes;
typedef int32x4_t Counts;
typedef float32x4_t Reals;
INLINE Codes codes_in(const void *at) { return vld1q_u8(at); }
INLINE Codes code_of(int8_t code) { return vdupq_n_u8((uint8_t)code); }
INLINE Codes masked(Codes codes, Codes mask) { return vandq_u8(codes, mask); }
INLINE Codes joined(Codes low, Codes high) { return vorrq_u8(low, high); }
INLINE Codes raised(Codes codes, int bits) { return vshlq_u8(codes, vdupq_n_s8((int8_t)bits)); }
INLINE Codes lowered(Codes codes, int bits) { return vshlq_u8(codes, vdupq_n_s8((int8_t)-bits)); }
INLINE Codes looked_up(Codes codes) { return vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(NONLINEAR)), codes); }
INLINE Counts count_of(int32_t count) { return vdupq_n_s32(count); }
INLINE Counts shifted(Counts a, int bits) { return vshlq_s32(a, vdupq_n_s32(bits)); }
INLINE Reals real_of(float real) { return vdupq_n_f32(real); }
INLINE Reals reals_in(const float *at) { return vld1q_f32(at); }
INLINE Reals reals_of(Counts counts) { return vcvtq_f32_s32(counts); }
INLINE Reals halves_in(const void *at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }
INLINE Reals brains_in(const void *at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
}
INLINE uint8x8_t four_bytes(const void *at) {
    uint32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return vreinterpret_u8_u32(vdup_n_u32(bytes));
}
INLINE Reals unsigned_in(const void *at) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(at)))));
}
INLINE Reals signed_in(const void *at) {
    return reals_of(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(at))))));
}
INLINE Reals product(Reals a, Reals b) { return vmulq_f32(a, b); }
INLINE Reals sum_with(Reals a, Reals b, Reals c) { return vfmaq_f32(c, a, b); }
INLINE void keep_reals(float *at, Reals reals) { vst1q_f32(at, reals); }
INLINE Counts sizes_of(Reals reals) { return vandq_s32(vreinterpretq_s32_f32(reals), vdupq_n_s32(INT32_MAX)); }
INLINE Counts added(Counts a, Counts b) { return vaddq_s32(a, b); }
INLINE Counts larger(Counts a, Counts b) { return vmaxq_s32(a, b); }
INLINE int32_t largest_in(Counts counts) { return vmaxvq_s32(counts); }
INLINE int32_t total_in(Counts counts) { return vaddvq_s32(counts); }
INLINE Counts nearest_to(Reals reals) { return vcvtnq_s32_f32(reals); }
INLINE void keep_bytes(void *at, Counts counts) {
    int16x4_t pairs = vmovn_s32(counts);
    int32_t bytes = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(pairs, pairs))), 0);
    memcpy(at, &bytes, sizeof bytes);
}
#define DOTS /* of signed codes: those of up to 6 bits are none that count as negative */
INLINE Counts dots_of(Counts counts, const Codes *codes, const int32_t *x) {
    int8x16_t all = vreinterpretq_s8_s32(vld1q_s32(x));
    counts = vdotq_laneq_s32(counts, vreinterpretq_s8_u8(codes[0]), all, 0);
    counts = vdotq_laneq_s32(counts, vreinterpretq_s8_u8(codes[1]), all, 1);
    counts = vdotq_laneq_s32(counts, vreinterpretq_s8_u8(codes[2]), all, 2);
    return vdotq_laneq_s32(counts, vreinterpretq_s8_u8(codes[3]), all, 3);
}
#ifdef __ARM_FEATURE_MATMUL_INT8
#define MATRIX_DOTS
/* 2 rows and 8 columns in each vector instead of 4 and 4 */
INLINE void pair_rows(const Codes *codes, Codes *pairs) {
    for (int j = 0; j < 8; j += 2) {
        uint32x4_t left = vreinterpretq_u32_u8(codes[j]), right = vreinterpretq_u32_u8(codes[j + 1]);
        pairs[j] = vreinterpretq_u8_u32(vzip1q_u32(left, right));
        pairs[j + 1] = vreinterpretq_u8_u32(vzip2q_u32(left, right));
    }
}
/* adds the products of 16 columns of such pairs and two inputs */
INLINE void matrix_dots_of(Counts *counts, const Codes *pairs, const int32_t *x, const int32_t *y) {
    int64x2_t one = vreinterpretq_s64_s32(vld1q_s32(x)), other = vreinterpretq_s64_s32(vld1q_s32(y));
    int8x16_t inputs[] = {vreinterpretq_s8_s64(vzip1q_s64(one, other)), vreinterpretq_s8_s64(vzip2q_s64(one, other))};
    Counts upper = vdupq_n_s32(0), lower = upper; /* of rows 0 and 1, of rows 2 and 3, for one input and the other */
    for (int j = 0; j < 2; j++) {
        upper = vmmlaq_s32(upper, vreinterpretq_s8_u8(pairs[2 * j]), inputs[j]);
        lower = vmmlaq_s32(lower, vreinterpretq_s8_u8(pairs[2 * j + 1]), inputs[j]);
    }
    counts[0] = vaddq_s32(counts[0], vuzp1q_s32(upper, lower));
    counts[1] = vaddq_s32(counts[1], vuzp2q_s32(upper, lower));
}
#endif
#else
#define SIDE 4
typedef uint8_t Codes __attribute__((vector_size(16)));
typedef int32_t Counts __attribute__((vector_size(16)));
typedef float Reals __attribute__((vector_size(16)));
INLINE Codes codes_in(const void *at) {
    Codes codes;
    memcpy(&codes, at, sizeof codes);
    return codes;
}
INLINE Codes code_of(int8_t code) { return (Codes){0} + (uint8_t)code; }
INLINE Codes masked(Codes codes, Codes mask) { return codes & mask; }
INLINE Codes joined(Codes low, Codes high) { return low | high; }
INLINE Codes raised(Codes codes, int bits) { return codes << bits; }
INLINE Codes lowered(Codes codes, int bits) { return codes >> bits; }
INLINE Codes looked_up(Codes codes) {
    for (int i = 0; i < 16; i++) codes[i] = NONLINEAR[codes[i]];
    return codes;
}
INLINE Counts count_of(int32_t count) { return (Counts){0} + count; }
INLINE Counts shifted(Counts a, int bits) { return a << bits; }
INLINE Reals real_of(float real) { return (Reals){0} + real; }
INLINE Reals reals_in(const float *at) {
    Reals reals;
    memcpy(&reals, at, sizeof reals);
    return reals;
}
INLINE Reals reals_of(Counts counts) { return __builtin_convertvector(counts, Reals); }
#define READ(at, type, value) \
    Reals reals; \
    const uint8_t *bytes = at; \
    type entry; \
    for (int i = 0; i < SIDE; i++) { \
        memcpy(&entry, bytes + i * sizeof entry, sizeof entry); \
        reals[i] = value; \
    } \
    return reals;
INLINE Reals halves_in(const void *at) { READ(at, uint16_t, half_value(entry)) }
INLINE Reals brains_in(const void *at) { READ(at, uint16_t, brain_value(entry)) }
INLINE Reals unsigned_in(const void *at) { READ(at, uint8_t, entry) }
INLINE Reals signed_in(const void *at) { READ(at, int8_t, entry) }
INLINE Reals product(Reals a, Reals b) { return a * b; }
INLINE Reals sum_with(Reals a, Reals b, Reals c) {
    for (int i = 0; i < SIDE; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
INLINE void keep_reals(float *at, Reals reals) { memcpy(at, &reals, sizeof reals); }
INLINE Counts sizes_of(Reals reals) { return (Counts)reals & INT32_MAX; }
INLINE Counts added(Counts a, Counts b) { return a + b; }
INLINE Counts larger(Counts a, Counts b) { return (a & (a > b)) | (b & ~(a > b)); }
INLINE int32_t largest_in(Counts counts) {
    int32_t largest = counts[0];
    for (int i = 1; i < SIDE; i++) largest = counts[i] > largest ? counts[i] : largest;
    return largest;
}
INLINE int32_t total_in(Counts counts) { return counts[0] + counts[1] + counts[2] + counts[3]; }
INLINE Counts nearest_to(Reals reals) { return __builtin_convertvector((reals + 12582912) - 12582912, Counts); }
INLINE void keep_bytes(void *at, Counts counts) {
    for (int i = 0; i < SIDE; i++) ((int8_t *)at)[i] = counts[i];
}
typedef int8_t Signed __attribute__((vector_size(16)));
typedef int16_t Pairs __attribute__((vector_size(32)));
INLINE Pairs repeated(int32_t x) { return __builtin_convertvector((Signed)count_of(x), Pairs); }
INLINE Counts counted(Counts counts, Pairs pairs) {
    for (int i = 0; i < SIDE; i++)
        counts[i] += pairs[4 * i] + pairs[4 * i + 1] + pairs[4 * i + 2] + pairs[4 * i + 3];
    return counts;
}
#define PAIRS_OF(codes, x) (__builtin_convertvector(codes, Pairs) * repeated(x))
#define PAIRS_ADDED(a, b) ((a) + (b))
#define PAIRS_COUNTED(counts, pairs) counted(counts, pairs)
INLINE Pairs signed_pairs(Codes codes, int32_t x) {
    return __builtin_convertvector((Signed)codes, Pairs) * repeated(x);
}
#endif
#define SIDES (PANEL / SIDE)
