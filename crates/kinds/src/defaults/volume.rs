//! Defaults of volumes and volume sources, which pods, claims and PersistentVolumes share.
//!
//! Source: `pkg/apis/core/v1/defaults.go` of Kubernetes v1.36.

use listwatch_json::{Value, json};

use super::Default::{Each, Flag, From, If, Number, Text};
use super::pod_spec::{WITH_FIELD_REF, pull_policy};
use super::{Defaults, NULL};

/// The file mode `rw-r--r--`, the default of volumes with generated files.
static MODE: Defaults = Defaults(&[("defaultMode", Number(0o644))]);

static DOWNWARD_API: Defaults = Defaults(&[("items", Each(&WITH_FIELD_REF)), ("defaultMode", Number(0o644))]);

static DOWNWARD_API_PROJECTION: Defaults = Defaults(&[("items", Each(&WITH_FIELD_REF))]);

static TOKEN: Defaults = Defaults(&[("expirationSeconds", Number(3600))]);

static PROJECTION: Defaults =
    Defaults(&[("serviceAccountToken", If(&TOKEN)), ("downwardAPI", If(&DOWNWARD_API_PROJECTION))]);

static PROJECTED: Defaults = Defaults(&[("sources", Each(&PROJECTION)), ("defaultMode", Number(0o644))]);

pub(crate) static HOST_PATH: Defaults =
    Defaults(&[("type", From(|path| (!path.contains_key("type")).then(|| json!(""))))]);

pub(crate) static ISCSI: Defaults = Defaults(&[("iscsiInterface", Text("default"))]);

static DATA_SOURCE: Defaults = Defaults(&[("apiGroup", NULL)]);

pub(crate) static CLAIM_SPEC: Defaults = Defaults(&[
    ("volumeMode", Text("Filesystem")),
    ("dataSource", If(&DATA_SOURCE)),
    ("dataSourceRef", If(&DATA_SOURCE)),
]);

static CLAIM_TEMPLATE: Defaults = Defaults(&[("spec", If(&CLAIM_SPEC))]);

static EPHEMERAL: Defaults = Defaults(&[("volumeClaimTemplate", If(&CLAIM_TEMPLATE))]);

static IMAGE_VOLUME: Defaults = Defaults(&[("pullPolicy", From(|image| Some(pull_policy(image.get("reference")))))]);

pub(crate) static RBD: Defaults =
    Defaults(&[("pool", Text("rbd")), ("user", Text("admin")), ("keyring", Text("/etc/ceph/keyring"))]);

/// Of PersistentVolumes; the `azureFile` of pods has no such member.
pub(crate) static AZURE_FILE: Defaults =
    Defaults(&[("secretNamespace", From(|file| (!file.contains_key("secretNamespace")).then_some(Value::Null)))]);

pub(crate) static AZURE_DISK: Defaults = Defaults(&[
    ("cachingMode", Text("ReadWrite")),
    ("fsType", Text("ext4")),
    ("readOnly", Flag(false)),
    ("kind", Text("Shared")),
]);

pub(crate) static SCALE_IO: Defaults = Defaults(&[("storageMode", Text("ThinProvisioned")), ("fsType", Text("xfs"))]);

pub(crate) static VOLUME: Defaults = Defaults(&[
    ("emptyDir", From(|volume| (!volume.keys().any(|name| name != "name")).then(|| json!({})))),
    ("secret", If(&MODE)),
    ("configMap", If(&MODE)),
    ("downwardAPI", If(&DOWNWARD_API)),
    ("projected", If(&PROJECTED)),
    ("hostPath", If(&HOST_PATH)),
    ("iscsi", If(&ISCSI)),
    ("rbd", If(&RBD)),
    ("azureDisk", If(&AZURE_DISK)),
    ("scaleIO", If(&SCALE_IO)),
    ("ephemeral", If(&EPHEMERAL)),
    ("image", If(&IMAGE_VOLUME)),
]);
