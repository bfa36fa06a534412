"""All file and result models by name, the source of the JSON Schemas and of the data dictionary."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from commonwatt.model.admin_results import (
    AttachResult,
    CheckResult,
    InitResult,
    StoreBackupResult,
    StoreCheckResult,
    StoreRestoreResult,
    StoreUpgradeResult,
)
from commonwatt.model.fields import DictionaryRow, dictionary_rows
from commonwatt.model.forecast_file import BlendModelHeader, ForecastModelHeader, TreesModelHeader
from commonwatt.model.forecast_results import (
    ForecastCompareResult,
    ForecastDemandResult,
    ForecastEvaluateResult,
    ForecastFitResult,
    ForecastPlanResult,
    ForecastPoolsResult,
    ForecastPredictResult,
)
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import (
    AuditPage,
    ClusterState,
    EventPage,
    Health,
    JobDetail,
    JobExplanation,
    JobOutput,
    JobPage,
    JobsChanged,
    LedgerPage,
    ModeOrder,
    ModeState,
    NewToken,
    NodePage,
    PhiOrder,
    PhiState,
    ProblemDetail,
    SamplePage,
    SavingsState,
    ServeResult,
    ServicePage,
    SubmittedArray,
    SubmittedJob,
    TenantOrder,
    TenantPage,
    TokenOrder,
    TokenPage,
    WhoAmI,
)
from commonwatt.model.map_file import MapFile, MappingFile, MapTable, TransferFile
from commonwatt.model.map_results import (
    MapBatchResult,
    MapEvaluateResult,
    MapLayersResult,
    MapNetworksResult,
    MapResult,
    MapSchedule,
    MapTableResult,
)
from commonwatt.model.partition_file import MigFile, PartitionFile
from commonwatt.model.partition_results import CharacterizeResult, MigResult, PartitionResult, PartitionSweepResult
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.results import (
    DataCheckResult,
    DataListResult,
    PlaceResult,
    ReproduceListResult,
    ReproduceResult,
    SimulationResult,
    SweepResult,
)
from commonwatt.model.scenario import Scenario
from commonwatt.model.study_file import StudyFile
from commonwatt.model.study_results import StudyResult
from commonwatt.model.suite_results import BenchResult, ReproduceAllResult
from commonwatt.model.timeslice_file import ModelProfile, PlanFile, TimesliceConfig
from commonwatt.model.timeslice_results import (
    TimeslicePlanResult,
    TimesliceProfileResult,
    TimesliceRunResult,
    TimesliceServeResult,
)
from commonwatt.model.training_profile import ProfileResult, TrainingProfile

__all__ = ["SCHEMAS", "dictionary"]

SCHEMAS: dict[str, type[BaseModel]] = {
    "place": PlaceFile,
    "scenario": Scenario,
    "study": StudyFile,
    "job": JobFile,
    "profile": TrainingProfile,
    "timeslice-plan": PlanFile,
    "timeslice": TimesliceConfig,
    "timeslice-profile": ModelProfile,
    "partition-mig": MigFile,
    "place-result": PlaceResult,
    "simulation-result": SimulationResult,
    "sweep-result": SweepResult,
    "study-result": StudyResult,
    "init-result": InitResult,
    "profile-result": ProfileResult,
    "data-list-result": DataListResult,
    "data-check-result": DataCheckResult,
    "reproduce-list-result": ReproduceListResult,
    "reproduce-result": ReproduceResult,
    "reproduce-all-result": ReproduceAllResult,
    "bench-result": BenchResult,
    "partition-mig-result": MigResult,
    "partition-characterize-result": CharacterizeResult,
    "timeslice-plan-result": TimeslicePlanResult,
    "timeslice-run-result": TimesliceRunResult,
    "timeslice-profile-result": TimesliceProfileResult,
    "timeslice-serve-result": TimesliceServeResult,
    "store-upgrade-result": StoreUpgradeResult,
    "store-backup-result": StoreBackupResult,
    "store-restore-result": StoreRestoreResult,
    "store-check-result": StoreCheckResult,
    "partition-sweep-result": PartitionSweepResult,
    "partition": PartitionFile,
    "partition-result": PartitionResult,
    "map": MapFile,
    "forecast-compare-result": ForecastCompareResult,
    "forecast-plan-result": ForecastPlanResult,
    "forecast-pools-result": ForecastPoolsResult,
    "mapping": MappingFile,
    "map-transfer": TransferFile,
    "map-result": MapResult,
    "map-evaluate-result": MapEvaluateResult,
    "map-layers-result": MapLayersResult,
    "map-networks-result": MapNetworksResult,
    "map-batch-result": MapBatchResult,
    "map-schedule-result": MapSchedule,
    "map-table": MapTable,
    "map-table-result": MapTableResult,
    "forecast-demand-result": ForecastDemandResult,
    "forecast-evaluate-result": ForecastEvaluateResult,
    "forecast-model": ForecastModelHeader,
    "forecast-trees-model": TreesModelHeader,
    "forecast-blend-model": BlendModelHeader,
    "forecast-fit-result": ForecastFitResult,
    "forecast-predict-result": ForecastPredictResult,
    "live-problem": ProblemDetail,
    "live-log-result": JobOutput,
    "live-submit-result": SubmittedJob,
    "live-submit-array-result": SubmittedArray,
    "live-jobs-result": JobPage,
    "live-changed-result": JobsChanged,
    "live-job-result": JobDetail,
    "live-explain-result": JobExplanation,
    "live-events-result": EventPage,
    "live-tenant": TenantOrder,
    "live-tenants-result": TenantPage,
    "live-nodes-result": NodePage,
    "live-services-result": ServicePage,
    "live-phi": PhiOrder,
    "live-phi-result": PhiState,
    "live-cluster-result": ClusterState,
    "live-mode": ModeOrder,
    "live-mode-result": ModeState,
    "live-savings-result": SavingsState,
    "live-ledger-result": LedgerPage,
    "live-samples-result": SamplePage,
    "live-audit-result": AuditPage,
    "live-token": TokenOrder,
    "live-token-result": NewToken,
    "live-tokens-result": TokenPage,
    "live-whoami-result": WhoAmI,
    "live-health-result": Health,
    "check-result": CheckResult,
    "attach-result": AttachResult,
    "serve-result": ServeResult,
}


def dictionary() -> Iterator[DictionaryRow]:
    """Yield every field of every model once, files first."""
    seen: set[tuple[str, str]] = set()
    for model in SCHEMAS.values():
        for row in dictionary_rows(model):
            if (row.model, row.name) not in seen:
                seen.add((row.model, row.name))
                yield row
