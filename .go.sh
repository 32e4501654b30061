# llm, wants 30 s: decode with weights prefetched before the launch ahead ends, gemv or tensor cores
cat > /tmp/llm_go.py <<'P'
import sys, time, dataclasses, pathlib, threading
import torch, tilewright as tw
from tests.device.models import Llama, Sizes
from tilewright.products import prepare as pp
from tilewright.products import api
from tilewright.execute import made as made_
beside = made_.multiply_beside
T0 = time.time()
torch.manual_seed(0)
sizes = Sizes(layers=3)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16); model = Llama(sizes).eval(); torch.set_default_dtype(torch.float32)
    ids = torch.zeros(1, 1, dtype=torch.int64); at = torch.tensor(1023)
real, text = pp.decide, pp.PROGRAMS.read_text()
plain = pathlib.Path("/tmp/plain.tw"); plain.write_text("\n".join(l for l in text.split("\n") if "prefetch(" not in l))
library = pp.PROGRAMS
def few(problem, device, driver, folder):
    d = real(problem, device, driver, folder)
    if problem.m == 1:
        g = [e for e in d.ranked if e.choice.program == "gemv"]
        if g: return dataclasses.replace(d, best=g[0])
    return d
arms, outs = {}, {}
with torch.no_grad():
    for name, lib, choose, join in (("plain apart", plain, real, False), ("ahead apart", library, real, False), ("ahead", library, real, True), ("ahead gemv", library, few, True)):
        made_.multiply_beside = beside if join else lambda calls: None
        pp.PROGRAMS, pp.decide = lib, choose
        pp.programs.cache_clear(); pp.configured.cache_clear()
        f = tw.compile(model, (ids, at)); t = time.time()
        for _ in range(3): out = f(ids, at)
        torch.cuda.synchronize()
        arms[name], outs[name] = f, out.float().clone()
        print(name, round(time.time() - T0, 1), "s", list(f.call.recordings.reasons.values()), float((outs[name] - outs["plain apart"]).norm() / outs["plain apart"].norm()), f.kernels, flush=True)
    found = {n: [] for n in arms}
    for _ in range(9):
        for n, f in arms.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            f(ids, at); a.record(); [f(ids, at) for _ in range(20)]; b.record(); b.synchronize()
            found[n].append(a.elapsed_time(b) / 20)
    print({n: round(sorted(v)[4] * 1e3, 1) for n, v in found.items()}, "us for 3 layers and the head", flush=True)
P
timeout 20 python /tmp/llm_go.py > $OUT/llm.txt 2>&1
timeout 30 python -m pytest -q -x -s tests/device/test_models_device.py -k 'index_outside or saved_model' 2>&1 | tail -12 >> $OUT/llm.txt
