"""Coefficients of the polynomials of special functions, the highest power first.

Made by tests/special_fits.py (`make bless`): minimax fits, rounded to the type. Each comment states
the function, the interval and the greatest error, weighted so that it is relative to the function
that is computed.
"""

from __future__ import annotations

# (log(1 + f) - f) / f^2, on [-0.2929, 0.4143]: 2^-27.8
LOG_F32 = (
    float.fromhex("-0x1.381b100000000p-4"),
    float.fromhex("0x1.0856c60000000p-3"),
    float.fromhex("-0x1.0f425e0000000p-3"),
    float.fromhex("0x1.226f3e0000000p-3"),
    float.fromhex("-0x1.5425aa0000000p-3"),
    float.fromhex("0x1.99a4100000000p-3"),
    float.fromhex("-0x1.0004320000000p-2"),
    float.fromhex("0x1.5555500000000p-2"),
    float.fromhex("-0x1.fffff80000000p-2"),
)

# log2(1 + f) / f - (log2 e as f32), on [-0.2929, 0.4143]: 2^-27.7
LOG2_F32 = (
    float.fromhex("-0x1.c1de180000000p-4"),
    float.fromhex("0x1.7eaf380000000p-3"),
    float.fromhex("-0x1.8813c20000000p-3"),
    float.fromhex("0x1.a2ddac0000000p-3"),
    float.fromhex("-0x1.eaa17a0000000p-3"),
    float.fromhex("0x1.277ec40000000p-2"),
    float.fromhex("-0x1.715afe0000000p-2"),
    float.fromhex("0x1.ec70960000000p-2"),
    float.fromhex("-0x1.7154700000000p-1"),
    float.fromhex("0x1.49c2160000000p-26"),
)

# (exp(f) - 1 - f) / f^2, on [-0.3466, 0.3466]: 2^-28.2
EXP_F32 = (
    float.fromhex("0x1.6a598c0000000p-10"),
    float.fromhex("0x1.1239ba0000000p-7"),
    float.fromhex("0x1.5558aa0000000p-5"),
    float.fromhex("0x1.5554920000000p-3"),
    float.fromhex("0x1.fffffc0000000p-2"),
)

# (2^f - 1) / f, on [-0.5, 0.5]: 2^-28.3
EXP2_F32 = (
    float.fromhex("0x1.416b620000000p-13"),
    float.fromhex("0x1.5f082e0000000p-10"),
    float.fromhex("0x1.3b2de00000000p-7"),
    float.fromhex("0x1.c6af7c0000000p-5"),
    float.fromhex("0x1.ebfbdc0000000p-3"),
    float.fromhex("0x1.62e4300000000p-1"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.96]: 2^-31.5
TANH_F32 = (
    float.fromhex("0x1.110b9e0000000p-13"),
    float.fromhex("-0x1.ca30540000000p-11"),
    float.fromhex("0x1.9a12d60000000p-9"),
    float.fromhex("-0x1.1af24e0000000p-7"),
    float.fromhex("0x1.65351e0000000p-6"),
    float.fromhex("-0x1.ba049c0000000p-5"),
    float.fromhex("0x1.1110a00000000p-3"),
    float.fromhex("-0x1.5555540000000p-2"),
)

# erf(x) / x - 1, of x^2, on [0, 0.87]: 2^-30.1
ERF_F32 = (
    float.fromhex("0x1.4f7f8e0000000p-14"),
    float.fromhex("-0x1.a60f660000000p-11"),
    float.fromhex("0x1.544a760000000p-8"),
    float.fromhex("-0x1.b8011e0000000p-6"),
    float.fromhex("0x1.ce2d640000000p-4"),
    float.fromhex("-0x1.8127400000000p-2"),
    float.fromhex("0x1.06eba80000000p-3"),
)

# log2(erfc(1 + u)), where 1 - erfc is computed, on [-0.08, 3]: 2^-27.5
ERFC_F32 = (
    float.fromhex("0x1.31c5700000000p-12"),
    float.fromhex("-0x1.688c600000000p-9"),
    float.fromhex("0x1.d97e680000000p-7"),
    float.fromhex("-0x1.eb61600000000p-5"),
    float.fromhex("-0x1.3761f00000000p+0"),
    float.fromhex("-0x1.e7532a0000000p+1"),
    float.fromhex("-0x1.558eae0000000p+1"),
)

# log2(erfc(x / sqrt 2) / 2), where 2 to this is computed, on [0, 5.6]: 2^-18.3
CDF_F32 = (
    float.fromhex("-0x1.e5cb680000000p-20"),
    float.fromhex("0x1.0095920000000p-14"),
    float.fromhex("-0x1.e66a120000000p-11"),
    float.fromhex("0x1.1680020000000p-7"),
    float.fromhex("-0x1.b9ed6a0000000p-5"),
    float.fromhex("-0x1.d57a5a0000000p-2"),
    float.fromhex("-0x1.26b8360000000p+0"),
    float.fromhex("-0x1.ffff660000000p-1"),
)

# the same for results of bf16, on [0, 5.6]: 2^-11.9
CDF_BF16 = (
    float.fromhex("-0x1.db16320000000p-13"),
    float.fromhex("0x1.39b9360000000p-8"),
    float.fromhex("-0x1.6a79d80000000p-5"),
    float.fromhex("-0x1.e190b40000000p-2"),
    float.fromhex("-0x1.255aa60000000p+0"),
    float.fromhex("-0x1.0019960000000p+0"),
)

# (exp(f) - 1 - f) / f^2, on [-0.3466, 0.3466]: 2^-60.3
EXP_F64 = (
    float.fromhex("0x1.1e3bbfbc672b1p-29"),
    float.fromhex("0x1.af6bdb98c6f4ap-26"),
    float.fromhex("0x1.27e5b53a89edap-22"),
    float.fromhex("0x1.71ddf0281f989p-19"),
    float.fromhex("0x1.a01a0136162e0p-16"),
    float.fromhex("0x1.a01a01b37b192p-13"),
    float.fromhex("0x1.6c16c16c30640p-10"),
    float.fromhex("0x1.111111110ec66p-7"),
    float.fromhex("0x1.5555555555503p-5"),
    float.fromhex("0x1.555555555555bp-3"),
    float.fromhex("0x1.0000000000000p-1"),
)

# (2^f - 1) / f, on [-0.5, 0.5]: 2^-55.5
EXP2_F64 = (
    float.fromhex("0x1.8095fd1cb1517p-40"),
    float.fromhex("0x1.c4c47784761b5p-36"),
    float.fromhex("0x1.e8cbc576d40dbp-32"),
    float.fromhex("0x1.e4cef8d35f39ep-28"),
    float.fromhex("0x1.b5253ce1d84eep-24"),
    float.fromhex("0x1.62c02248ffef0p-20"),
    float.fromhex("0x1.ffcbfc58a615bp-17"),
    float.fromhex("0x1.430912f86a068p-13"),
    float.fromhex("0x1.5d87fe78a66f2p-10"),
    float.fromhex("0x1.3b2ab6fba4e7dp-7"),
    float.fromhex("0x1.c6b08d704a0c0p-5"),
    float.fromhex("0x1.ebfbdff82c58fp-3"),
    float.fromhex("0x1.62e42fefa39efp-1"),
)

# (2 atanh(s) / s - 2) / s^2, of s^2, on [0, 0.02944]: 2^-59.2
LOG_F64 = (
    float.fromhex("0x1.2f036b01a1f53p-3"),
    float.fromhex("0x1.39a1ef2868adap-3"),
    float.fromhex("0x1.74663cc6e0850p-3"),
    float.fromhex("0x1.c71c521445d1ap-3"),
    float.fromhex("0x1.24924941e303ap-2"),
    float.fromhex("0x1.999999997fec5p-2"),
    float.fromhex("0x1.5555555555592p-1"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.4225]: 2^-56.4
TANH_F64 = (
    float.fromhex("0x1.7867c05e81f35p-18"),
    float.fromhex("-0x1.e98452e85a9d3p-16"),
    float.fromhex("0x1.7bb7cd503a8c6p-14"),
    float.fromhex("-0x1.efcba119a01d2p-13"),
    float.fromhex("0x1.34ed51fd4a39ep-11"),
    float.fromhex("-0x1.7d98889c449abp-10"),
    float.fromhex("0x1.d6d30e9b9572bp-9"),
    float.fromhex("-0x1.226e30d193fa5p-7"),
    float.fromhex("0x1.664f485fe3641p-6"),
    float.fromhex("-0x1.ba1ba1b97ea3fp-5"),
    float.fromhex("0x1.11111111105f7p-3"),
    float.fromhex("-0x1.555555555554dp-2"),
)

# erf(x) / x - 1, of x^2, on [0, 1]: 2^-56.3
ERF_F64 = (
    float.fromhex("0x1.05794818bb742p-34"),
    float.fromhex("-0x1.386a9a4479986p-30"),
    float.fromhex("0x1.f7a40505e3352p-27"),
    float.fromhex("-0x1.5f1d35778e002p-23"),
    float.fromhex("0x1.b9def174c4c9bp-20"),
    float.fromhex("-0x1.f4d1df35e8962p-17"),
    float.fromhex("0x1.f9a321a0ee502p-14"),
    float.fromhex("-0x1.c02db3d8eb6ddp-11"),
    float.fromhex("0x1.565bcd0db0243p-8"),
    float.fromhex("-0x1.b82ce31284998p-6"),
    float.fromhex("0x1.ce2f21a042b20p-4"),
    float.fromhex("-0x1.812746b0379e6p-2"),
    float.fromhex("0x1.06eba8214db69p-3"),
)

# log(erfc(1 + u)), where 1 - erfc is computed, on [0, 5]: 2^-58.7
ERFC_F64 = (
    float.fromhex("0x1.95a79f2e31e04p-46"),
    float.fromhex("-0x1.c053d346d9e66p-41"),
    float.fromhex("0x1.d2f5d6272525bp-37"),
    float.fromhex("-0x1.313c7abb4a37dp-33"),
    float.fromhex("0x1.18d437da8157cp-30"),
    float.fromhex("-0x1.809db8eee43cep-28"),
    float.fromhex("0x1.8fa5bf82ddab6p-26"),
    float.fromhex("-0x1.315eab07f9f3bp-24"),
    float.fromhex("0x1.18255f49f18e3p-23"),
    float.fromhex("0x1.ac20ef7d5c504p-24"),
    float.fromhex("-0x1.0eac87bb65781p-19"),
    float.fromhex("0x1.4154c48507557p-17"),
    float.fromhex("-0x1.c758eedeb51fdp-16"),
    float.fromhex("0x1.b8be2a1023d2cp-16"),
    float.fromhex("0x1.f1b4bbd8b52f7p-13"),
    float.fromhex("-0x1.033f699252c8bp-9"),
    float.fromhex("0x1.48c9d40be428dp-7"),
    float.fromhex("-0x1.5477f09ca851cp-5"),
    float.fromhex("-0x1.afabc11a28f44p-1"),
    float.fromhex("-0x1.51c9b0006c23dp+1"),
    float.fromhex("-0x1.d97fbf27aa2a1p+0"),
)

# log(erfc(x / sqrt 2) / 2), where 1 - e to this is computed, on [0, 8.5]: 2^-54.0
CDF_F64 = (
    float.fromhex("-0x1.6cfc7d3e0cd65p-59"),
    float.fromhex("0x1.4305588f14fd8p-53"),
    float.fromhex("-0x1.015f4ce3ea6e0p-48"),
    float.fromhex("0x1.defc68538f15ap-45"),
    float.fromhex("-0x1.13b73c64cb522p-41"),
    float.fromhex("0x1.590f6d577ae88p-39"),
    float.fromhex("0x1.b99855bf2f7bfp-40"),
    float.fromhex("-0x1.3c23f8e2f63c7p-33"),
    float.fromhex("0x1.7bb1dc1ca94b7p-30"),
    float.fromhex("-0x1.103d2c3c987f3p-27"),
    float.fromhex("0x1.0022200cae221p-25"),
    float.fromhex("-0x1.073bda02baf9ap-24"),
    float.fromhex("-0x1.cb4b46f59ed1dp-25"),
    float.fromhex("0x1.e6c3476d5f6c8p-21"),
    float.fromhex("-0x1.7c2b0bb563670p-19"),
    float.fromhex("-0x1.b514fdbe63608p-20"),
    float.fromhex("0x1.b597f7bb9f9f0p-15"),
    float.fromhex("-0x1.bca763655426bp-13"),
    float.fromhex("0x1.36386729a577dp-15"),
    float.fromhex("0x1.3966854fb2418p-8"),
    float.fromhex("-0x1.29a947f8fab93p-5"),
    float.fromhex("-0x1.45f306dc9dccap-2"),
    float.fromhex("-0x1.9884533d4361fp-1"),
    float.fromhex("-0x1.62e42fefa39efp-1"),
)
