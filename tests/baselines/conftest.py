import pytest


@pytest.fixture(autouse=True, scope="module")
def _private_cache(private_cache):
    """Every file here has a cache of its own."""


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """Made-up data with what warm systems live on in Task2MCP: lists that repeat, and a flat popularity."""
    from study.data import dataset, prepare, synthetic

    folder = tmp_path_factory.mktemp("planted")
    raw = synthetic.generate(folder / "raw", n_servers=800, duplicate_share=0.4, popularity_sd=0.3)
    prepare.prepare("synthetic", raw, folder / "prepared")
    return dataset.load("synthetic", folder / "prepared")


@pytest.fixture(scope="session")
def floor(planted):
    """Protocol -> the least mean Recall@10 of a system that works: five times popularity, or five times chance."""
    from study.data.splits import make
    from tests.baselines.toys import fit, recall10

    warm = make(planted, "warm")
    popularity = recall10(fit("popularity", planted, warm), planted, warm).mean()
    return {"warm": 5 * popularity, "cold": 5 * 10 / planted.n_servers}


@pytest.fixture(scope="session")
def blocks():
    """Two blocks of tasks and servers, and their `warm` split."""
    from study.data.splits import make
    from tests.baselines.toys import block_dataset

    data = block_dataset()
    return data, make(data, "warm")


@pytest.fixture(scope="session")
def cold_blocks(blocks):
    """The same data, and its `cold` split."""
    from study.data.splits import make

    return blocks[0], make(blocks[0], "cold")
