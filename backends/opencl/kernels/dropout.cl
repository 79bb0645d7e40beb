// dropout and drop_path by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), exactly
// as core/abi/ops.h states it. A work-item takes four neighbouring elements of a sample at a time.   T: storage.
static uint4 philox(uint low, uint high, uint4 counter) {
  for (int round = 0; round < 10; ++round) {
    const uint a = 0xD2511F53u * counter.x, a_high = mul_hi(0xD2511F53u, counter.x);
    const uint b = 0xCD9E8D57u * counter.z, b_high = mul_hi(0xCD9E8D57u, counter.z);
    counter = (uint4)(b_high ^ counter.y ^ low, b, a_high ^ counter.w ^ high, a);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return counter;
}

GROUP_KERNEL void dropout(ARRAY(x), ARRAY(sample_ids), ARRAY(step), ARRAY(y), uint samples, uint size, uint key_low,
                          uint key_high, float p, uint per_sample, uint quads_each) {
  const uint quads = (size + 3) / 4, first = get_group_id(0) * quads_each,
             last = min(samples * quads, first + quads_each);
  const uint step_low = (uint)OF(int, step)[0], step_high = (uint)OF(int, step)[1];
  for (uint q = first + LANE; q < last; q += LANES) {
    const uint sample = q / quads, quad = q % quads;
    const uint id = (uint)OF(int, sample_ids)[sample];
    const uint4 random = philox(key_low, key_high, (uint4)(per_sample ? 0 : quad, id, step_low, step_high));
    uint words[4];
    vstore4(per_sample ? (uint4)random.x : random, 0, words);
    const ulong start = (ulong)sample * size;
    for (uint e = quad * 4; e < min(size, quad * 4 + 4); ++e) {
      const bool keep = (words[e % 4] >> 8) * 0x1p-24f >= p;
      PUT(T, OF(STORED(T), y) + start, e, keep ? AT(T, OF(STORED(T), x) + start, e) / (1 - p) : 0.0f);
    }
  }
}
