import torch, frametap, math
def run(name, f, calls):
    frametap.reset()
    g = frametap.compile(f)
    bad=[]
    for i,a in enumerate(calls):
        r=g(*a); e=f(*a)
        if not torch.equal(torch.as_tensor(r),torch.as_tensor(e)): bad.append(i)
    ex=frametap.explain(g)
    print(f"{name:30} recordings {ex.recordings if hasattr(ex,'recordings') else '?'} hits {getattr(ex,'hits','?')} misses {getattr(ex,'misses','?')} bad {bad}")
    return ex
T=torch.randn
run("batch", lambda x: x.relu()+1, [(T(n,4),) for n in range(1,21)])
run("view batch", lambda x: x.view(x.shape[0],-1)*2, [(T(n,4,3),) for n in range(1,21)])
run("view size(0)", lambda x: x.view(x.size(0),-1)*2, [(T(n,4,3),) for n in range(1,21)])
run("arange len", lambda x: torch.arange(len(x))*2, [(T(n,4),) for n in range(1,21)])
run("int arg x*n", lambda x,n: x*n, [(T(4),n) for n in range(1,21)])
run("int arg x**n", lambda x,n: x**n, [(T(4),n) for n in range(1,21)])
run("float arg x*f", lambda x,n: x*n, [(T(4),n*.5) for n in range(1,21)])
run("float clamp", lambda x,n: x.clamp(-n,n), [(T(4),n*.5) for n in range(1,21)])
run("float arith", lambda x,n: x*(n*2+1), [(T(4),n*.5) for n in range(1,21)])
run("math.sqrt(size)", lambda x: x/math.sqrt(x.size(-1)), [(T(4,n),) for n in range(1,21)])
run("size>2", lambda x: x+1 if x.shape[0]>2 else x-1, [(T(n),) for n in range(1,21)])
run("slice half", lambda x: x[:x.shape[0]//2]+1, [(T(n),) for n in range(2,22)])
run("pad to 8", lambda x: torch.nn.functional.pad(x,(0,(8-x.shape[-1]%8)%8)), [(T(2,n),) for n in range(2,22)])
run("x[i]", lambda x,i: x[i]+1, [(T(30,4),n) for n in range(20)])
run("item scale", lambda x: x*x.sum().item(), [(T(4),) for n in range(20)])
run("mask causal", lambda x: torch.ones(x.shape[1],x.shape[1],dtype=torch.bool).tril(), [(T(2,n,4),) for n in range(2,22)])
class M:
    def __init__(s): s.step=0
    def __call__(s,x):
        s.step+=1
        return x*s.step
m=M();frametap.reset();g=frametap.compile(m.__call__)
for i in range(20): g(T(3))
print("counter used in op",frametap.explain(g).recordings)
