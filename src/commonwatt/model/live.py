"""Settings of the live control plane in a scenario file (``commonwatt serve``)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.identity import OidcSpec, SocketSpec, TlsSpec
from commonwatt.model.job_file import ADDRESS

__all__ = [
    "ECC",
    "TEMPERATURE",
    "XID",
    "AccountLimits",
    "HealthSpec",
    "KubernetesSpec",
    "LiveSpec",
    "LocalSpec",
    "ProfilingSpec",
    "ServerSpec",
    "ServicesSpec",
    "SlurmSpec",
    "TenantLimits",
]


_NAMESPACE = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class LocalSpec(FileModel):
    """Engine `local`: processes on this machine."""

    state: str = quantity("folder of the engine's records, relative to this file", "-", "state")
    slots: dict[str, tuple[int, ...]] = quantity(
        "GPU indices (CUDA_VISIBLE_DEVICES) of each node by name; absent: numbered from 0", "-", dict
    )
    grace_s: float = quantity("time between the request to stop a job and its kill", "s", 10.0, ge=0, le=3600)
    users: dict[str, str] = quantity(
        "Unix user of each tenant's jobs by the tenant's name; absent: all run as the user of `serve`. Needs root", "-",
        dict,
    )  # fmt: skip
    meter: Literal["none", "declared", "nvml"] = quantity(
        "energy readings: none, computed from the declared power of nodes and GPUs, or from the GPUs' own counters "
        "and the declared idle power",
        "-",
        "declared",
    )


_SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,100}$")]


class SlurmSpec(FileModel):
    """Engine `slurm`."""

    state: str = quantity(
        "folder of job scripts and records, visible to all nodes, relative to this file", "-", "state"
    )
    cluster_id: str = quantity(
        "mark of this control plane's jobs in Slurm", "-", "commonwatt", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$"
    )
    partition: str | None = quantity("partition for jobs; absent: Slurm's default", "-", None)
    conf: str | None = quantity("path of slurm.conf (SLURM_CONF); absent: Slurm's default", "-", None)
    grace_s: float = quantity("time between the request to stop a job and its kill", "s", 30.0, ge=0, le=3600)
    command_timeout_s: float = quantity("timeout of Slurm's client commands", "s", 20.0, gt=0, le=600)
    use_json: bool = quantity(
        "use Slurm's JSON output if available; its plain output is faster when others have thousands of jobs",
        "-",
        True,  # noqa: FBT003
    )
    poll_s: float = quantity("interval of queries to Slurm", "s", 2.0, gt=0, le=600)
    on_scancel: Literal["cancelled", "requeue"] = quantity(
        "a job that is cancelled in Slurm (scancel): cancelled for good, or queued again", "-", "cancelled"
    )
    power: bool = quantity("whether a capacity plan may power nodes down", "-", False)  # noqa: FBT003
    place_in: tuple[_SlurmName, ...] = quantity(
        "partitions on whose nodes jobs are placed, as far as they are handed over; on other nodes Slurm's own "
        "scheduler places jobs, and only power is switched; none: jobs are placed on all nodes", "-", (),
    )  # fmt: skip
    meter: Literal["none", "declared", "slurm"] = quantity(
        "energy readings: none, computed from the declared power of nodes and GPUs, or as Slurm measures nodes "
        "(AcctGatherEnergyType)", "-", "declared",
    )  # fmt: skip
    options: tuple[str, ...] = quantity("additional sbatch options of every job, such as --account=ml", "-", ())
    users: dict[str, str] = quantity(
        "user of each tenant's jobs, in Slurm and on the nodes, by the tenant's name; absent: all are jobs of the user "
        "of `serve`. Needs root", "-",
        dict,
    )  # fmt: skip
    accounts: dict[str, _SlurmName] = quantity("Slurm account of each tenant's jobs, by the tenant's name", "-", dict)
    qos: dict[str, _SlurmName] = quantity("Slurm QOS of each tenant's jobs, by the tenant's name", "-", dict)
    cpus_per_gpu: int = quantity("CPUs requested per GPU", "CPUs", 1, ge=1, le=1024)
    python: str = quantity("Python (3.9 or newer) on the nodes that runs the batch script", "-", "/usr/bin/python3")
    read_only: bool = quantity(
        "whether nothing is ever changed in Slurm: the control plane only advises, in a dry run that cannot be ended",
        "-",
        False,  # noqa: FBT003
    )
    start_s: float = quantity(
        "longest time in Slurm's queue for GPUs that were free, before the job is withdrawn", "s", 60.0, gt=0
    )
    lag_s: float = quantity(
        "longest delay until a file written on a node is visible here after its job has ended", "s", 10.0, ge=0
    )


class NodePowerSpec(FileModel):
    """Power of the nodes of engine `kubernetes`."""

    hook: tuple[str, ...] = quantity(
        "program that turns a node off and on, with its first arguments; it gets the node's name and `off` or `on`, is "
        "run without a shell, and may be run again with the same arguments",
        "-",
        min_length=1,
    )
    limit_s: float = quantity("time limit of the program", "s", 300.0, gt=0, le=86_400)


_ObjectName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]  # in Kubernetes


class PriorityClassSpec(FileModel):
    """What a Job of users asks for by the PriorityClass of its pods, as far as it has no annotation of its own."""

    tardiness_weight: float = quantity("cost of each second of lateness", "currency/s", ge=0, le=1e9)
    due_in_s: float | None = quantity("due date, as seconds from when it is taken over; absent: none", "s", None, gt=0)


class KubernetesSpec(FileModel):
    """Engine `kubernetes`."""

    state: str = quantity(
        "folder of the engine's records, on a volume that all pods see under this path; relative to this file", "-",
        "state", min_length=1,
    )  # fmt: skip
    cluster_id: str = quantity(
        "mark of this control plane's pods", "-", "commonwatt", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$"
    )
    kubeconfig: str | None = quantity(
        "kubeconfig file, relative to this file; absent: the service account of the pod that commonwatt runs in, else "
        "KUBECONFIG or ~/.kube/config",
        "-",
        None,
    )
    context: str | None = quantity("context of the kubeconfig; absent: its current one", "-", None)
    namespace: str | None = quantity(
        "namespace of the pods; absent: that of the context, or of commonwatt's own pod", "-", None,
        pattern=_NAMESPACE,
    )  # fmt: skip
    image: str | None = quantity(
        "container image of jobs that name none", "-", None, max_length=512, pattern=r"^[A-Za-z0-9][^\s]*$"
    )
    python: str = quantity("Python (3.9 or newer) in the images, which runs the runner", "-", "python3", min_length=1)
    volumes: dict[str, str] = quantity(
        "volumes of every pod by the absolute path where they are mounted: claim:NAME (a PersistentVolumeClaim) or "
        "host:/PATH; the state folder is mounted from the host if it is on none of them",
        "-",
        dict,
    )
    pod: dict[str, Any] = quantity(
        "fields of the spec of every pod, as Kubernetes names them, such as tolerations, nodeSelector, "
        "priorityClassName, imagePullSecrets, securityContext",
        "-",
        dict,
    )
    resources: dict[str, str] = quantity(
        "resource of a GPU type by its name; absent: nvidia.com/gpu, and nvidia.com/mig-PROFILE for TYPE-PROFILE", "-",
        dict,
    )  # fmt: skip
    jobs: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = quantity(
        "tenants whose Jobs (batch/v1) are taken over, by the namespace where users create them", "-", dict
    )
    job_kinds: tuple[Literal["Job", "JobSet", "PyTorchJob"], ...] = quantity(
        "what is taken over there; JobSet (jobset.x-k8s.io/v1alpha2) and PyTorchJob (kubeflow.org/v1) have to be "
        "installed",
        "-",
        ("Job",),
        min_length=1,
    )
    kueue: Literal["after-admission", "leave"] = quantity(
        "a Job (batch/v1) of users in a queue of Kueue: placed once Kueue has admitted it, or left alone", "-",
        "after-admission",
    )  # fmt: skip
    priority_classes: dict[_ObjectName, PriorityClassSpec] = quantity(
        "what a Job of users asks for by the name of its pods' PriorityClass; other names say nothing", "-", dict
    )
    cpus_per_gpu: float = quantity("CPUs requested per GPU", "CPUs", 1.0, ge=0, le=1024)
    memory_gb_per_gpu: float = quantity("memory requested per GPU, also its limit; 0: none", "GB", 0.0, ge=0)
    grace_s: float = quantity("time between the request to stop a job and its kill", "s", 30.0, ge=0, le=3600)
    start_s: float = quantity(
        "longest time from the placement of a pod until its command runs, before the job is withdrawn: it covers the "
        "pull of its image",
        "s",
        600.0,
        gt=0,
    )
    lag_s: float = quantity(
        "longest delay until a file written in a pod is visible here after the pod is over", "s", 10.0, ge=0
    )
    keep_s: float = quantity("time for which pods that are over are kept", "s", 3600.0, ge=0)
    request_timeout_s: float = quantity("timeout of a request to the API server", "s", 10.0, gt=0, le=600)
    on_delete: Literal["requeue", "cancelled"] = quantity(
        "a job whose pod somebody else deletes: queued again, or cancelled for good; an eviction is a deletion", "-",
        "requeue",
    )  # fmt: skip
    meter: Literal["none", "declared"] = quantity(
        "energy readings: none, or computed from the declared power of nodes and GPUs", "-", "declared"
    )
    power: NodePowerSpec | None = quantity(
        "how a capacity plan puts nodes to sleep; absent: they stay on. Not together with an autoscaler", "-", None
    )
    read_only: bool = quantity(
        "whether nothing is ever changed in Kubernetes: the control plane only advises, in a dry run that cannot be "
        "ended; it needs no right but to list and watch nodes and pods",
        "-",
        False,  # noqa: FBT003
    )

    @field_validator("volumes")
    @classmethod
    def _mounted(cls, value: dict[str, str]) -> dict[str, str]:
        for path, source in value.items():
            if not path.startswith("/"):
                raise FieldError("the absolute path where it is mounted", value=path)
            if not re.fullmatch(r"claim:[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|host:/.*", source):
                raise FieldError("claim:NAME or host:/PATH", field=path, value=source)
        return value

    @field_validator("jobs")
    @classmethod
    def _namespaces(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for namespace in value:
            if not re.fullmatch(_NAMESPACE, namespace):
                raise FieldError("the name of a namespace", value=namespace)
        return value

    @field_validator("pod")
    @classmethod
    def _left_to_the_site(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in _OURS & value.keys():
            raise FieldError("it to be left out, as commonwatt sets it", field=name)
        return value


_OURS = frozenset({
    "containers", "hostname", "nodeName", "restartPolicy", "schedulerName", "subdomain",
    "terminationGracePeriodSeconds",
})  # fmt: skip
"""Fields of a pod's spec that no site can set."""


class ProfilingSpec(FileModel):
    """The job profiler (ANDREAS section III)."""

    nodes: tuple[str, ...] = quantity("nodes reserved for profiling", "-", min_length=1)
    epochs: int = quantity("epochs per measurement of a configuration", "-", 2, ge=1, le=1000)
    limit_s: float = quantity("time limit of a measurement", "s", 3600.0, gt=0)


class ServerSpec(FileModel):
    """The REST API and the dashboard."""

    host: str = quantity("host or address to listen on", "-", "127.0.0.1", min_length=1)
    port: int = quantity("port to listen on; 0: any free port", "-", 8470, ge=0, le=65535)
    requests_per_s: float = quantity(
        "average rate of requests per token; bursts may have twice as many", "1/s", 100.0, gt=0
    )
    connections: int = quantity(
        "largest number of open connections; never more than half of the descriptors the process may have", "-", 500,
        ge=1, le=100_000,
    )  # fmt: skip
    head_limit_s: float = quantity("longest time for the head of a request", "s", 10.0, gt=0, le=3600)
    own_process: bool | None = quantity(
        "whether the API runs in a process of its own, beside the controller's; absent: from 1,000 nodes on", "-", None
    )
    past_due: Literal["warn", "refuse"] = quantity(
        "handling of a job whose due date has passed at submission", "-", "warn"
    )
    public_url: str | None = quantity("URL for users, if it differs; shown at start", "-", None)
    tls: TlsSpec | None = quantity("encryption; absent: plain HTTP", "-", None)
    socket: SocketSpec | None = quantity("Unix socket for this machine; absent: none", "-", None)
    oidc: OidcSpec | None = quantity("single sign-on; absent: only tokens of the control plane", "-", None)

    @field_validator("public_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
            raise FieldError("a URL such as https://commonwatt.example.org", value=value)
        return value


NotifiedKind = Literal[
    "submitted", "started", "resumed", "resized", "migrated", "preempted", "interrupted", "not-started", "completed",
    "failed", "cancelled", "not-drained", "not-powered", "drained", "gpu-fault",
]  # fmt: skip
"""Kinds of events that a webhook can receive."""


class WebhookSpec(FileModel):
    """A program of the site that receives events."""

    url: str = quantity("address that gets a POST with JSON", "-", pattern=r"^https?://[^\s@]+$", max_length=2048)
    kinds: tuple[NotifiedKind, ...] = quantity(
        "kinds of events", "-", ("completed", "failed", "cancelled"), min_length=1
    )
    tenants: tuple[str, ...] = quantity("tenants whose events it receives; none: all events", "-", ())
    secret_variable: str | None = quantity(
        "environment variable with a secret, by which requests are signed (HMAC-SHA256, X-Commonwatt-Signature)", "-",
        None, min_length=1,
    )  # fmt: skip


class MailSpec(FileModel):
    """Mail to the owners of jobs, as `mail_to` and `mail_on` of a job, or --mail-user and --mail-type, ask for it."""

    host: str = quantity("SMTP server", "-", "127.0.0.1", min_length=1)
    port: int = quantity("its port", "-", 25, ge=1, le=65535)
    tls: Literal["none", "starttls", "tls"] = quantity("encryption of the connection to it", "-", "none")
    user: str | None = quantity("user to log in as; absent: no login", "-", None, min_length=1)
    password_variable: str | None = quantity("environment variable with the password", "-", None, min_length=1)
    sender: str = quantity("address that mail comes from", "-", pattern=ADDRESS, max_length=254)
    domains: tuple[str, ...] = quantity("domains that mail may be sent to, such as example.org", "-", min_length=1)


class NotifySpec(FileModel):
    """Who receives events."""

    webhooks: tuple[WebhookSpec, ...] = quantity("programs", "-", (), max_length=20)
    mail: MailSpec | None = quantity("owners of jobs; absent: no mail", "-", None)


class _Limits(FileModel):
    queued_jobs: int | None = quantity("largest number of queued jobs", "-", None, ge=0)
    running_jobs: int | None = quantity("largest number of jobs that run at once", "-", None, ge=0)
    gpus: int | None = quantity("largest number of GPUs in use at once", "GPUs", None, ge=0)
    gpu_hours: float | None = quantity("budget of a period; used up, nothing more starts in it", "GPU h", None, ge=0)
    energy_kwh: float | None = quantity("budget of a period, in energy of its jobs", "kWh", None, ge=0)
    cost: float | None = quantity("budget of a period, in cost of that energy", "currency", None, ge=0)

    @property
    def of_running(self) -> bool:
        """Whether it limits what starts, not only what is submitted."""
        return any(value is not None for value in (self.running_jobs, self.gpus)) or self.has_budget

    @property
    def has_budget(self) -> bool:
        """Whether it has a budget of a period."""
        return any(value is not None for value in (self.gpu_hours, self.energy_kwh, self.cost))


class TenantLimits(_Limits):
    """Limits of a tenant; an absent one is no limit."""

    tardiness_weight: float | None = quantity(
        "largest tardiness weight of a job; a job accepted with more counts with this", "currency/s", None, ge=0
    )
    tardiness_budget: float | None = quantity(
        "largest sum of the tardiness weights of all queued and running jobs", "currency/s", None, ge=0
    )
    due_after_s: float | None = quantity(
        "earliest due date that decisions take into account, as time from submission", "s", None, ge=0
    )


class AccountLimits(_Limits):
    """Limits of several tenants together, beside those of each; an absent one is no limit."""

    tenants: tuple[str, ...] = quantity("tenants whose jobs count, by name", "-", min_length=1)


XID, ECC, TEMPERATURE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_TEMP"


class HealthSpec(FileModel):
    """Faults of GPUs that drain a node, as NVIDIA's DCGM exporter and Prometheus report them."""

    prometheus: str = quantity(
        "address of the Prometheus that has the exporter's metrics, such as http://127.0.0.1:9090", "-",
        pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$", max_length=2048,
    )  # fmt: skip
    every_s: float = quantity("time between two looks", "s", 30.0, ge=1, le=3600)
    node_label: str = quantity(
        "label with the name of the node; a domain or a port after it is ignored", "-", "Hostname",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
    )  # fmt: skip
    xids: tuple[Annotated[int, Field(ge=1, le=9999)], ...] = quantity(
        "Xid errors that drain (DCGM_FI_DEV_XID_ERRORS); an empty list: none", "-", (48, 63, 64, 74, 79, 94, 95)
    )
    ecc_uncorrected: bool = quantity(
        "whether uncorrected ECC errors drain (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL above 0)", "-",
        True,  # noqa: FBT003
    )  # fmt: skip
    hot_c: float | None = quantity(
        "temperature of a GPU that drains (DCGM_FI_DEV_GPU_TEMP at or above it); absent: none does", "°C", None,
        gt=0, le=200,
    )  # fmt: skip
    hot_for_s: float = quantity("time for which it must be so hot", "s", 120.0, ge=0, le=86_400)
    at_most: float = quantity(
        "largest share of nodes that faults keep drained at once, at least one node; beyond it there is a warning only",
        "share", 0.1, gt=0, le=1,
    )  # fmt: skip

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of DCGM's exporter that it needs."""
        asked = ((XID, self.xids), (ECC, self.ecc_uncorrected), (TEMPERATURE, self.hot_c is not None))
        return tuple(metric for metric, wanted in asked if wanted)

    @model_validator(mode="after")
    def _watches(self) -> HealthSpec:
        if not self.xids and not self.ecc_uncorrected and self.hot_c is None:
            raise FieldError("something to watch: xids, ecc_uncorrected or hot_c", value="nothing")
        return self


class ServicesSpec(FileModel):
    """Services of the live control plane: where clients reach them, and how they are run."""

    host: str = quantity("address of the front of all services; not a loopback address only with key_env", "-",
                         "127.0.0.1", min_length=1)  # fmt: skip
    key_env: str | None = quantity(
        "environment variable with the key that clients send (Authorization: Bearer KEY); null: none is asked for", "-",
        None, min_length=1,
    )  # fmt: skip
    device: Literal["cpu", "cuda"] = quantity(
        "what shared GPUs are for model servers: cuda, the GPU itself; cpu, a device of so many threads", "-", "cpu"
    )
    port: int = quantity("its port; 0: any free port", "-", 8480, ge=0, le=65535)
    threads: int = quantity("device cpu: CPU threads per request", "-", 1, ge=1, le=1024)
    segment_s: float | None = quantity(
        "length of the segments into which models are cut, between which services can be switched; null: not cut",
        "s", 0.002, gt=0,
    )  # fmt: skip
    step_s: float = quantity(
        "time over which requests are counted; replicas are sized by the last such step", "s", 30.0, gt=0
    )
    python: str | None = quantity(
        "Python with `commonwatt[serve]` that runs model servers, the same on all nodes; null: that of `serve`, or "
        "with engine `kubernetes` live.kubernetes.python", "-", None, min_length=1,
    )  # fmt: skip
    image: str | None = quantity(
        "engine `kubernetes`: image of model servers, with `commonwatt[serve]`; null: live.kubernetes.image", "-", None,
        min_length=1,
    )  # fmt: skip
    addresses: dict[str, str] = quantity(
        "engine `slurm`: address of a node, by name, on which its model servers listen; absent: as Slurm has it",
        "-", dict,
    )  # fmt: skip


class LiveSpec(FileModel):
    """The live control plane."""

    mode: Literal["live", "power", "dry-run"] = quantity(
        "live: decisions are carried out; dry-run: they are only recorded, with the estimated savings; power: of "
        "engine `slurm`, whose own scheduler places all jobs: only the capacity plan is carried out", "-", "live"
    )  # fmt: skip
    store: str = quantity(
        "database: a SQLAlchemy URL (mysql+pymysql://..., postgresql+psycopg://...) or an SQLite file relative "
        "to this file; $NAME and ${NAME} stand for environment variables",
        "-",
        "commonwatt.db",
        min_length=1,
    )
    local: LocalSpec = quantity("engine `local`", "-", LocalSpec)
    services: ServicesSpec = quantity("services; engines `local`, `slurm`, `kubernetes`", "-", ServicesSpec)
    slurm: SlurmSpec = quantity("engine `slurm`", "-", SlurmSpec)
    kubernetes: KubernetesSpec = quantity("engine `kubernetes`", "-", KubernetesSpec)
    server: ServerSpec = quantity("REST API and dashboard", "-", ServerSpec)
    profiling: ProfilingSpec | None = quantity("profile new jobs on reserved nodes; absent: no profiling", "-", None)
    image_command: tuple[str, ...] = quantity(
        "command that runs a job's command in an image; {image} and {command} are replaced", "-",
        ("apptainer", "exec", "--nv", "{image}", "{command}"), min_length=1,
    )  # fmt: skip
    folder: str | None = quantity(
        "default working directory of jobs, absolute; absent: a folder for each job, `jobs/NUMBER` in the state folder",
        "-",
        None,
    )
    default_time_limit_s: float = quantity(
        "run time assumed for planning a job without any known times", "s", 86400.0, gt=0
    )
    decision_limit_s: float = quantity(
        "time limit of a decision; the best schedule found so far is used", "s", 10.0, gt=0
    )
    keep_days: float = quantity(
        "retention of samples, the audit log and events of ended jobs; jobs and the ledger are kept forever",
        "days",
        180.0,
        gt=0,
        le=36_500,
    )
    health: HealthSpec | None = quantity("faults of GPUs that drain a node; absent: none do", "-", None)
    notify: NotifySpec | None = quantity("notifications by mail and webhook; absent: none", "-", None)
    limits: TenantLimits = quantity("limits of every tenant", "-", TenantLimits)
    tenant_limits: dict[str, TenantLimits] = quantity(
        "limits of tenants by name, in place of those of `limits`", "-", dict
    )
    accounts: dict[str, AccountLimits] = quantity(
        "limits of several tenants together, by a name for them; a tenant may be in several", "-", dict
    )
    budget_period: Literal["day", "week", "month"] = quantity(
        "period of budgets, by the calendar in UTC; weeks begin on Mondays", "-", "month"
    )
    output_mb: float | None = quantity(
        "most output that is kept of a run, its end; null: all of it", "MB", 1000.0, ge=1
    )
    files_gb: float | None = quantity(
        "most space that a job's checkpoints and other files in its own folder (`jobs/NUMBER` of the state folder) may "
        "take, by engines local and slurm: with more it has failed; null: no limit", "GB", None, gt=0,
    )  # fmt: skip
    reserve_mb: float = quantity(
        "space to leave free where output is kept: below it, 1 MB is kept of each run", "MB", 500.0, ge=0
    )
    retries: int = quantity("restarts of a job after interruptions without progress in between", "-", 3, ge=0)

    def users_of(self, engine: str) -> dict[str, str]:
        """Return the Unix user of each tenant's jobs under this *engine*; none: all run as the user of `serve`."""
        return {"local": self.local.users, "slurm": self.slurm.users}.get(engine, {})

    def advises_only(self, engine: str) -> bool:
        """Whether the control plane over this *engine* can only observe."""
        return (engine == "slurm" and self.slurm.read_only) or (engine == "kubernetes" and self.kubernetes.read_only)

    def limits_of(self, tenant: str) -> TenantLimits:
        """Return the limits of a *tenant*: its own where there are any, else those of every tenant."""
        own = self.tenant_limits.get(tenant)
        return self.limits if own is None else self.limits.model_copy(update=own.model_dump(exclude_unset=True))

    def accounts_of(self, tenant: str) -> dict[str, AccountLimits]:
        """Return the accounts that a *tenant* is in."""
        return {name: account for name, account in self.accounts.items() if tenant in account.tenants}

    @field_validator("folder")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise FieldError("an absolute path", value=value)
        if "\0" in (value or ""):
            raise FieldError("a path without NUL characters", value=value)
        return value
