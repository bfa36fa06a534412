from ._cpus_memory import within_cpus_memory as within_cpus_memory
from ._decision import schedule_with_guarantees as schedule_with_guarantees
from ._decision import validated_schedule as validated_schedule
from ._decision import waiting_beside_room as waiting_beside_room
from ._domains import in_few_domains as in_few_domains
from ._kept import Guarantees as Guarantees
from ._kept import Reservation as Reservation

__all__ = [
    "Guarantees",
    "Reservation",
    "in_few_domains",
    "schedule_with_guarantees",
    "validated_schedule",
    "waiting_beside_room",
    "within_cpus_memory",
]
