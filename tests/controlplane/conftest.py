import pytest


@pytest.fixture
def opened():
    """Keep what has to be closed in the end."""
    made = []

    def keep(one):
        made.append(one)
        return one

    yield keep
    for one in made:
        one.close()
