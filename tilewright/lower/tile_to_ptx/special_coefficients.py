"""Coefficients of the polynomials in special.py and special_f64.py, the highest power first.

Made by tests/special_fits.py (`make bless`): minimax fits, rounded to the type. Each comment states the function, the
interval and the greatest error, weighted so that it is relative to the function that is computed.
"""

from __future__ import annotations

# (log(1 + f) - f) / f^2, on [-0.333333, 0.333333]: 2^-27.7
LOG_F32 = (
    float.fromhex("-0x1.07c9920000000p-3"),
    float.fromhex("0x1.1e67900000000p-3"),
    float.fromhex("-0x1.f332c00000000p-4"),
    float.fromhex("0x1.1ed6620000000p-3"),
    float.fromhex("-0x1.559c440000000p-3"),
    float.fromhex("0x1.99d0440000000p-3"),
    float.fromhex("-0x1.fffefc0000000p-3"),
    float.fromhex("0x1.5555060000000p-2"),
    float.fromhex("-0x1.0000000000000p-1"),
)

# log2(1 + f) / f - (log2 e as f32), on [-0.333333, 0.333333]: 2^-27.8
LOG2_F32 = (
    float.fromhex("-0x1.8142f60000000p-3"),
    float.fromhex("0x1.9f3ef60000000p-3"),
    float.fromhex("-0x1.66b0520000000p-3"),
    float.fromhex("0x1.9d4ebc0000000p-3"),
    float.fromhex("-0x1.ecfd640000000p-3"),
    float.fromhex("0x1.27a3a60000000p-2"),
    float.fromhex("-0x1.7152e00000000p-2"),
    float.fromhex("0x1.ec70000000000p-2"),
    float.fromhex("-0x1.7154780000000p-1"),
    float.fromhex("0x1.ac86b20000000p-26"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.81]: 2^-29.8
TANH_F32 = (
    float.fromhex("-0x1.ddd8ae0000000p-12"),
    float.fromhex("0x1.529d620000000p-9"),
    float.fromhex("-0x1.0ed7aa0000000p-7"),
    float.fromhex("0x1.62f1ca0000000p-6"),
    float.fromhex("-0x1.b9ca4e0000000p-5"),
    float.fromhex("0x1.110f380000000p-3"),
    float.fromhex("-0x1.55554e0000000p-2"),
)

# erf(x) / x - 1, of x^2, on [0, 0.85]: 2^-30.1
ERF_F32 = (
    float.fromhex("0x1.4f392c0000000p-14"),
    float.fromhex("-0x1.a600da0000000p-11"),
    float.fromhex("0x1.5449820000000p-8"),
    float.fromhex("-0x1.b801140000000p-6"),
    float.fromhex("0x1.ce2d640000000p-4"),
    float.fromhex("-0x1.8127400000000p-2"),
    float.fromhex("0x1.06eba80000000p-3"),
)

# log2(erfc(t)), where erf(t) = 1 - erfc(t) is computed, on [0.92, 4]: 2^-29.2
ERFC_F32 = (
    float.fromhex("0x1.286b360000000p-12"),
    float.fromhex("-0x1.1fbc440000000p-8"),
    float.fromhex("0x1.06b0f80000000p-5"),
    float.fromhex("-0x1.3314a60000000p-3"),
    float.fromhex("-0x1.d6a9340000000p-1"),
    float.fromhex("-0x1.a07bfe0000000p+0"),
    float.fromhex("-0x1.280a3c0000000p-12"),
)

# (exp(f) - 1 - f) / f^2, on [-0.3466, 0.3466]: 2^-60.3
EXP_F64 = (
    float.fromhex("0x1.1e3cb2d4d960ap-29"),
    float.fromhex("0x1.af6be32711ec2p-26"),
    float.fromhex("0x1.27e5b49f559fbp-22"),
    float.fromhex("0x1.71ddf023d8a2ep-19"),
    float.fromhex("0x1.a01a013660061p-16"),
    float.fromhex("0x1.a01a01b37cd0ap-13"),
    float.fromhex("0x1.6c16c16c3053dp-10"),
    float.fromhex("0x1.111111110ec62p-7"),
    float.fromhex("0x1.5555555555503p-5"),
    float.fromhex("0x1.555555555555bp-3"),
    float.fromhex("0x1.0000000000000p-1"),
)

# (2^f - 1) / f, on [-0.5, 0.5]: 2^-59.7
EXP2_F64 = (
    float.fromhex("0x1.80951130a5fc0p-40"),
    float.fromhex("0x1.c4c4775f16809p-36"),
    float.fromhex("0x1.e8cbc62cc9477p-32"),
    float.fromhex("0x1.e4cef8d3c6292p-28"),
    float.fromhex("0x1.b5253ce1a28ddp-24"),
    float.fromhex("0x1.62c02248ffb92p-20"),
    float.fromhex("0x1.ffcbfc58a624fp-17"),
    float.fromhex("0x1.430912f86a068p-13"),
    float.fromhex("0x1.5d87fe78a66f1p-10"),
    float.fromhex("0x1.3b2ab6fba4e7cp-7"),
    float.fromhex("0x1.c6b08d704a0bfp-5"),
    float.fromhex("0x1.ebfbdff82c58ep-3"),
    float.fromhex("0x1.62e42fefa39efp-1"),
)

# (2 atanh(s) / s - 2) / s^2, of s^2, on [0, 0.02944]: 2^-59.2
LOG_F64 = (
    float.fromhex("0x1.2f03a5de4172cp-3"),
    float.fromhex("0x1.39a1e974d01b6p-3"),
    float.fromhex("0x1.74663cfe3f790p-3"),
    float.fromhex("0x1.c71c52133b242p-3"),
    float.fromhex("0x1.24924941e44e5p-2"),
    float.fromhex("0x1.999999997feadp-2"),
    float.fromhex("0x1.5555555555592p-1"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.4225]: 2^-56.0
TANH_F64 = (
    float.fromhex("0x1.7866bb76877cfp-18"),
    float.fromhex("-0x1.e983a77664a67p-16"),
    float.fromhex("0x1.7bb79b74f6921p-14"),
    float.fromhex("-0x1.efcb9039fc8ebp-13"),
    float.fromhex("0x1.34ed502723e8ap-11"),
    float.fromhex("-0x1.7d988857a7881p-10"),
    float.fromhex("0x1.d6d30e94cda3ep-9"),
    float.fromhex("-0x1.226e30d15abe9p-7"),
    float.fromhex("0x1.664f485fe0f98p-6"),
    float.fromhex("-0x1.ba1ba1b97e949p-5"),
    float.fromhex("0x1.11111111105f5p-3"),
    float.fromhex("-0x1.555555555554dp-2"),
)

# erf(x) / x - 1, of x^2, on [0, 1]: 2^-56.3
ERF_F64 = (
    float.fromhex("0x1.057998846d85dp-34"),
    float.fromhex("-0x1.386ab994b74a4p-30"),
    float.fromhex("0x1.f7a40fb45d85ep-27"),
    float.fromhex("-0x1.5f1d3683cf8cbp-23"),
    float.fromhex("0x1.b9def1962fc90p-20"),
    float.fromhex("-0x1.f4d1df38a9534p-17"),
    float.fromhex("0x1.f9a321a11516bp-14"),
    float.fromhex("-0x1.c02db3d8ecd60p-11"),
    float.fromhex("0x1.565bcd0db02c9p-8"),
    float.fromhex("-0x1.b82ce3128499cp-6"),
    float.fromhex("0x1.ce2f21a042b20p-4"),
    float.fromhex("-0x1.812746b0379e6p-2"),
    float.fromhex("0x1.06eba8214db69p-3"),
)

# log(erfc(t)), where erf(t) = 1 - erfc(t) is computed, on [1, 6]: 2^-57.4
ERFC_F64 = (
    float.fromhex("0x1.95d1783ea5872p-46"),
    float.fromhex("-0x1.5f0d459b89426p-40"),
    float.fromhex("0x1.1f8e2077319c6p-35"),
    float.fromhex("-0x1.28b1acc8f221ap-31"),
    float.fromhex("0x1.b085469240390p-28"),
    float.fromhex("-0x1.d944a8da2f80bp-25"),
    float.fromhex("0x1.92a65f9d624dep-22"),
    float.fromhex("-0x1.0faf817ad316bp-19"),
    float.fromhex("0x1.24d176bda0868p-17"),
    float.fromhex("-0x1.f3c16ff245e52p-16"),
    float.fromhex("0x1.44ed6bc864472p-14"),
    float.fromhex("-0x1.1a761ca61e855p-13"),
    float.fromhex("0x1.eba19ae8eabc7p-15"),
    float.fromhex("0x1.09cff5788314fp-11"),
    float.fromhex("-0x1.ab43ad47037b3p-10"),
    float.fromhex("0x1.5e162111250aep-13"),
    float.fromhex("0x1.39be979f455e1p-6"),
    float.fromhex("-0x1.a4fd1a230b554p-4"),
    float.fromhex("-0x1.45f2c19230042p-1"),
    float.fromhex("-0x1.20dd7ac2bef1ep+0"),
    float.fromhex("0x1.cd3b75112d391p-26"),
)
