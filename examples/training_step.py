"""Speeds up a training loop, and reads why a recording was made.

The loop is ordinary: a module, an optimizer, and a last batch that is smaller than the others. The whole step from the
batch to the loss is captured. `explain` lists recordings, hits and breaks.

Prints:
    recordings: 1, replayed calls: 71
    losses fall: True
    the same weights as plain PyTorch: True
    another dtype: why dtype: f64 != f32
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import frametap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(self, images, labels):
        return nn.functional.cross_entropy(self.layers(images / 16), labels)


def train(net, loss_of, images, labels, epochs=3, batch=75):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    for _ in range(epochs):
        for i in range(0, len(images), batch):
            loss = loss_of(images[i : i + batch], labels[i : i + batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main():
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)
    labels = torch.tensor(digits.target)

    torch.manual_seed(0)
    plain, net = Net(), Net()
    net.load_state_dict(plain.state_dict())
    train(plain, plain.loss, images, labels)

    loss_of = frametap.compile(net.loss)
    losses = train(net, loss_of, images, labels)
    report = frametap.explain(loss_of)
    print(f"recordings: {report.recordings}, replayed calls: {report.hits}")
    print("losses fall:", losses[-1] < losses[0])
    same = all(torch.equal(a, b) for a, b in zip(plain.parameters(), net.parameters(), strict=True))
    print("the same weights as plain PyTorch:", same)

    # A call that would be recorded is an error inside of this block, and the error gives the cause.
    try:
        with frametap.assert_no_recording():
            loss_of(images.double(), labels)
    except frametap.RecordingError as error:
        why = next(line for line in str(error).splitlines() if "why" in line)
        print("another dtype:", " ".join(why.split()))


if __name__ == "__main__":
    main()
