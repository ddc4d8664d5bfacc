"""Quantizes a trained CNN to int8, and reads the table.

Each op has a row: where it is, whether it runs in int8, its signal to noise, and the reason. One layer is then kept in
float by its name, as one would do with the layer that costs the accuracy.

Prints:
    aten.conv2d      conv   int8
    aten.batch_norm  norm   folded
    aten.relu        -      int8
    aten.conv2d      deep   int8
    aten.relu        -      int8
    aten.max_pool2d  -      follows
    aten.flatten.using_ints -      follows
    aten.linear      head   int8
    accuracy of the float model above 90 %: True
    accuracy lost in int8 below 1 %: True
    signal to noise of the output above 25 dB: True
    with the head in float: ['float']
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import frametap


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.deep = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width * 16, 10)

    def forward(self, images):
        x = torch.relu(self.norm(self.conv(images)))
        x = nn.functional.max_pool2d(torch.relu(self.deep(x)), 2)
        return {"scores": self.head(x.flatten(1))}


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images)["scores"].argmax(1) == labels).float().mean().item()


def main():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)

    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(6):
        for i in range(0, 1440, 60):
            loss = nn.functional.cross_entropy(
                net(images[i : i + 60])["scores"], labels[i : i + 60]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net.eval()

    batches = [images[i : i + 32] for i in range(0, 512, 32)]
    quantized = frametap.quantize(net, batches)
    for row in quantized.report:
        print(f"{row['op']:16} {row['scope'] or '-':6} {row['decision']}")
    in_float = accuracy(net, images[1440:], labels[1440:])
    in_int8 = accuracy(quantized, images[1440:], labels[1440:])
    print("accuracy of the float model above 90 %:", in_float > 0.9)
    print("accuracy lost in int8 below 1 %:", in_float - in_int8 < 0.01)
    print("signal to noise of the output above 25 dB:", quantized.sqnr > 25)

    mixed = frametap.quantize(net, batches, float_scopes=("head",))
    print("with the head in float:", [r["decision"] for r in mixed.report if r["scope"] == "head"])


if __name__ == "__main__":
    main()
