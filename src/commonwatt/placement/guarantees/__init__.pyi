from ._cpus_memory import within_cpus_memory as within_cpus_memory
from ._decision import checked as checked
from ._decision import decided as decided
from ._decision import held_back as held_back
from ._kept import Guarantees as Guarantees
from ._kept import Reservation as Reservation

__all__ = ["Guarantees", "Reservation", "checked", "decided", "held_back", "within_cpus_memory"]
