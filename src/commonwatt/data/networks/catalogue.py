"""What each network is: its name in G#'s Table 3, where it is defined, and how its table was derived."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ENTRIES", "Entry"]


class Entry(NamedTuple):
    """A network by the name used here, as the paper prints it, its source, and what was taken from there."""

    model: str
    title: str
    source: str
    derived: str
    in_table_3: bool = True


_TORCHVISION = "own shape arithmetic; equal to torchvision 0.28 layer by layer"
_TRANSFORMERS = "default configuration of transformers 4.57, bare model"

ENTRIES: tuple[Entry, ...] = (
    Entry("alexnet", "AlexNet", "Krizhevsky 2014, arXiv:1404.5997", _TORCHVISION),
    Entry("densenet161", "DenseNet", "Huang et al. 2016, arXiv:1608.06993, Table 1",
          f"{_TORCHVISION}; of the sizes the one whose layers the published batches hold"),
    Entry("googlenet", "GoogleNet", "Szegedy et al. 2014, arXiv:1409.4842, Table 1",
          f"{_TORCHVISION}, so 3 x 3 where the paper has 5 x 5, batch norm, no auxiliary outputs"),
    Entry("mnasnet", "MnasNet", "Tan et al. 2018, arXiv:1807.11626", f"{_TORCHVISION} (mnasnet1_0, B1)"),
    Entry("mobilenet-v2", "MobileNet-V2", "Sandler et al. 2018, arXiv:1801.04381, Table 2", _TORCHVISION),
    Entry("resnet50", "ResNet50", "He et al. 2015, arXiv:1512.03385, Table 1",
          f"{_TORCHVISION}; the stride of a block is in its 3 x 3 filter"),
    Entry("resnext50", "ResNext50", "Xie et al. 2016, arXiv:1611.05431, Table 1", f"{_TORCHVISION} (32 x 4d)"),
    Entry("resnet18", "ResNet18", "He et al. 2015, arXiv:1512.03385, Table 1", _TORCHVISION),
    Entry("wideresnet50", "WideResNet50", "Zagoruyko and Komodakis 2016, arXiv:1605.07146",
          f"{_TORCHVISION} (wide_resnet50_2)"),
    Entry("squeezenet", "SqueezeNet", "Iandola et al. 2016, arXiv:1602.07360, Table 1", f"{_TORCHVISION} (1.0)"),
    Entry("vgg16", "VGG16", "Simonyan and Zisserman 2014, arXiv:1409.1556, Table 1 D", _TORCHVISION),
    Entry("shufflenet-v2", "ShuffleNet-V2", "Ma et al. 2018, arXiv:1807.11164, Table 5",
          f"{_TORCHVISION} (x1_0); not in Table 3, but the published batches hold its layers", in_table_3=False),
    Entry("albert", "ALBERT", "Lan et al. 2019, arXiv:1909.11942", f"{_TRANSFORMERS} (the xxlarge size)"),
    Entry("bart", "Bart", "Lewis et al. 2019, arXiv:1910.13461", f"{_TRANSFORMERS} (the large size)"),
    Entry("bert", "BERT", "Devlin et al. 2018, arXiv:1810.04805", f"{_TRANSFORMERS} (the base size), with pooler"),
    Entry("camembert", "CamemBERT", "Martin et al. 2019, arXiv:1911.03894", f"{_TRANSFORMERS}, with pooler"),
    Entry("ctrl", "CTRL", "Keskar et al. 2019, arXiv:1909.05858", _TRANSFORMERS),
    Entry("distilbert", "DistilBERT", "Sanh et al. 2019, arXiv:1910.01108", _TRANSFORMERS),
    Entry("electra", "ELECTRA", "Clark et al. 2020, arXiv:2003.10555", f"{_TRANSFORMERS} (the small size)"),
    Entry("flaubert", "FlauBERT", "Le et al. 2019, arXiv:1912.05372", f"{_TRANSFORMERS} (that of XLM)"),
    Entry("gpt2", "GPT2", "Radford et al. 2019", f"{_TRANSFORMERS} (the small size)"),
    Entry("gpt", "GPT", "Radford et al. 2018", _TRANSFORMERS),
    Entry("longformer", "LongFormer", "Beltagy et al. 2020, arXiv:2004.05150",
          f"{_TRANSFORMERS}; filled up to a window of 512 tokens; no token attends globally"),
    Entry("marianmt", "MarianNMT", "Junczys-Dowmunt et al. 2018, arXiv:1804.00344", _TRANSFORMERS),
    Entry("mobilebert", "MobileBERT", "Sun et al. 2020, arXiv:2004.02984", f"{_TRANSFORMERS}, with pooler"),
    Entry("reformer", "Reformer", "Kitaev et al. 2020, arXiv:2001.04451",
          f"{_TRANSFORMERS}; up to 64 tokens, which it does not hash"),
    Entry("retribert", "RetriBERT", "transformers 4, models/retribert", f"{_TRANSFORMERS}, embedding of a question"),
    Entry("roberta", "RoBERTa", "Liu et al. 2019, arXiv:1907.11692", f"{_TRANSFORMERS}, with pooler"),
    Entry("t5", "T5", "Raffel et al. 2019, arXiv:1910.10683", f"{_TRANSFORMERS} (the small size)"),
    Entry("transformer-xl", "TransformerXL", "Dai et al. 2019, arXiv:1901.02860",
          f"{_TRANSFORMERS}; an empty memory; projections of embeddings are taken for look-ups"),
    Entry("xlm", "XLM", "Lample and Conneau 2019, arXiv:1901.07291", _TRANSFORMERS),
    Entry("xlm-roberta", "XLM-RoBERTa", "Conneau et al. 2019, arXiv:1911.02116", f"{_TRANSFORMERS}, with pooler"),
    Entry("xlnet", "XLNet", "Yang et al. 2019, arXiv:1906.08237", f"{_TRANSFORMERS} (the large size); an empty memory"),
    Entry("din", "DIN", "Zhou et al. 2018, arXiv:1706.06978; sizes: github.com/mouna99/dien",
          "attention over 100 clicks as products of 100 rows"),
    Entry("dien", "DIEN", "Zhou et al. 2019, arXiv:1809.03672; sizes: github.com/mouna99/dien",
          "without the auxiliary loss; the 100 steps of a GRU as rows of one product"),
    Entry("dlrm-mlperf", "DLRM-MLPerf", "MLPerf training 0.7, DLRM on Criteo Terabyte",
          "26 tables of 128; products of all pairs of vectors as one 27 x 27 product"),
    Entry("dlrm-large", "DLRM-large", "Kalamkar et al. 2020, arXiv:2005.04680, Table 1",
          "64 tables of 256; bottom 2048 x 7 and 256, top 4096 x 15 and 1"),
    Entry("dlrm-small", "DLRM-small", "Kalamkar et al. 2020, arXiv:2005.04680, Table 1",
          "8 tables of 64; bottom 512 and 64, top 1024 x 3 and 1; Table 3 cites Naumov et al. 2019 for it"),
    Entry("wide-deep", "WideDeep", "Cheng et al. 2016, arXiv:1606.07792, Fig. 4", "the deep part, of 1,200 inputs"),
    Entry("dlrm-rmc1", "DLRM-RMC1", "Gupta et al. 2020, arXiv:2001.02772, Table 1", "10 tables of 32, concatenated"),
    Entry("dlrm-rmc2", "DLRM-RMC2", "Gupta et al. 2020, arXiv:2001.02772, Table 1", "40 tables of 32, concatenated"),
    Entry("ncf", "NCF", "He et al. 2017, arXiv:1708.05031; sizes: MLPerf training 0.5",
          "not in Table 3, but in Fig. 6", in_table_3=False),
)  # fmt: skip
