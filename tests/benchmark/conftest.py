import pytest

torch = pytest.importorskip("torch", reason="the bench extra is not installed")


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors run fastest on one thread, and other tests may be using the rest."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
