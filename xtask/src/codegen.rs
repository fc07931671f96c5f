//! `cargo xtask codegen`: Kubernetes' built-in types as one table in Rust (`crates/k8s-types/src/table.rs`).
//!
//! Two published descriptions of the same types are read side by side and joined by field number. `generated.proto` has
//! number, label and wire type. The Go structs have the JSON name, whether the field is a pointer, and when Go omits
//! it. They also have markers (`+listType`, `+default`, `+enum`, ...), from which Kubernetes generates its OpenAPI. The
//! run fails where the two disagree or where a marker has no rule. The output holds facts (names, numbers, types) and
//! no text of the sources.
//!
//! ```text
//!  sources ──▶ proto: messages ─┐
//!          └─▶ go: structs ─────┴▶ join ──▶ print ──▶ crates/k8s-types/src/table.rs
//! ```

mod go;
mod join;
mod print;
mod proto;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;

use self::join::Sources;
use crate::args::Args;
use crate::failure::{Outcome, ensure, fail};
use crate::tools;

pub(crate) const HELP: &str = "\
Writes crates/k8s-types/src/table.rs from Kubernetes' published sources: field numbers, JSON names, list types,
merge keys, defaults and permitted values of each built-in kind that is served. docs/upgrading-kubernetes.md has
the steps for a new release. Kinds of the release that the table does not have are printed.

  --release TAG   another release than the supported one, e.g. v1.37.0
  --sources DIR   folders api, apimachinery, apiextensions-apiserver and kube-aggregator of that release;
                  without it, git fetches them into target/kubernetes
  --check         compares with the table that is there, and changes nothing

Usage: cargo xtask codegen [--release TAG] [--sources DIR] [--check]";

/// The supported release.
const RELEASE: &str = "v1.36.2";

/// The path of the table, from the root.
const TABLE: &str = "crates/k8s-types/src/table.rs";

/// The packages read: protobuf package, Go package, and the prefix that distinguishes messages of equal names.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("k8s.io.api.admissionregistration.v1", "k8s.io/api/admissionregistration/v1", "Admission"),
    ("k8s.io.api.apidiscovery.v2", "k8s.io/api/apidiscovery/v2", "Discovery"),
    ("k8s.io.api.apps.v1", "k8s.io/api/apps/v1", "Apps"),
    ("k8s.io.api.authentication.v1", "k8s.io/api/authentication/v1", "Authentication"),
    ("k8s.io.api.authorization.v1", "k8s.io/api/authorization/v1", "Authorization"),
    ("k8s.io.api.autoscaling.v1", "k8s.io/api/autoscaling/v1", "AutoscalingV1"),
    ("k8s.io.api.autoscaling.v2", "k8s.io/api/autoscaling/v2", "Autoscaling"),
    ("k8s.io.api.batch.v1", "k8s.io/api/batch/v1", "Batch"),
    ("k8s.io.api.certificates.v1", "k8s.io/api/certificates/v1", "Certificates"),
    ("k8s.io.api.coordination.v1", "k8s.io/api/coordination/v1", "Coordination"),
    ("k8s.io.api.core.v1", "k8s.io/api/core/v1", "Core"),
    ("k8s.io.api.discovery.v1", "k8s.io/api/discovery/v1", "Endpoints"),
    ("k8s.io.api.events.v1", "k8s.io/api/events/v1", "Events"),
    ("k8s.io.api.flowcontrol.v1", "k8s.io/api/flowcontrol/v1", "Flow"),
    ("k8s.io.api.networking.v1", "k8s.io/api/networking/v1", "Networking"),
    ("k8s.io.api.node.v1", "k8s.io/api/node/v1", "Node"),
    ("k8s.io.api.policy.v1", "k8s.io/api/policy/v1", "Policy"),
    ("k8s.io.api.rbac.v1", "k8s.io/api/rbac/v1", "Rbac"),
    ("k8s.io.api.resource.v1", "k8s.io/api/resource/v1", "Resource"),
    ("k8s.io.api.scheduling.v1", "k8s.io/api/scheduling/v1", "Scheduling"),
    ("k8s.io.api.storage.v1", "k8s.io/api/storage/v1", "Storage"),
    ("k8s.io.api.storagemigration.v1beta1", "k8s.io/api/storagemigration/v1beta1", "Migration"),
    (
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1",
        "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
        "Extension",
    ),
    ("k8s.io.apimachinery.pkg.apis.meta.v1", "k8s.io/apimachinery/pkg/apis/meta/v1", "Meta"),
    (
        "k8s.io.kube_aggregator.pkg.apis.apiregistration.v1",
        "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
        "Registration",
    ),
];

/// The kinds in the table: `apiVersion` on the wire, package, kinds. `Foo+` is Foo and FooList.
/// The `apiVersion` of kinds that every group version has is empty.
const KINDS: &[(&str, &str, &str)] = &[
    (
        "v1",
        "k8s.io.api.core.v1",
        "Binding ConfigMap+ ComponentStatus+ Endpoints+ Event+ LimitRange+ Namespace+ Node+ PersistentVolume+ \
         PersistentVolumeClaim+ Pod+ PodTemplate+ RangeAllocation ReplicationController+ ResourceQuota+ Secret+ \
         Service+ ServiceAccount+",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "k8s.io.api.admissionregistration.v1",
        "MutatingAdmissionPolicy+ MutatingAdmissionPolicyBinding+ MutatingWebhookConfiguration+ \
         ValidatingAdmissionPolicy+ ValidatingAdmissionPolicyBinding+ ValidatingWebhookConfiguration+",
    ),
    (
        "apiextensions.k8s.io/v1",
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1",
        "CustomResourceDefinition+",
    ),
    ("apidiscovery.k8s.io/v2", "k8s.io.api.apidiscovery.v2", "APIGroupDiscovery+"),
    ("apiregistration.k8s.io/v1", "k8s.io.kube_aggregator.pkg.apis.apiregistration.v1", "APIService+"),
    ("apps/v1", "k8s.io.api.apps.v1", "ControllerRevision+ DaemonSet+ Deployment+ ReplicaSet+ StatefulSet+"),
    ("authentication.k8s.io/v1", "k8s.io.api.authentication.v1", "SelfSubjectReview TokenRequest TokenReview"),
    (
        "authorization.k8s.io/v1",
        "k8s.io.api.authorization.v1",
        "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    ),
    ("autoscaling/v1", "k8s.io.api.autoscaling.v1", "HorizontalPodAutoscaler+ Scale"),
    ("autoscaling/v2", "k8s.io.api.autoscaling.v2", "HorizontalPodAutoscaler+"),
    ("batch/v1", "k8s.io.api.batch.v1", "CronJob+ Job+"),
    ("certificates.k8s.io/v1", "k8s.io.api.certificates.v1", "CertificateSigningRequest+"),
    ("coordination.k8s.io/v1", "k8s.io.api.coordination.v1", "Lease+"),
    ("discovery.k8s.io/v1", "k8s.io.api.discovery.v1", "EndpointSlice+"),
    ("events.k8s.io/v1", "k8s.io.api.events.v1", "Event+"),
    ("flowcontrol.apiserver.k8s.io/v1", "k8s.io.api.flowcontrol.v1", "FlowSchema+ PriorityLevelConfiguration+"),
    (
        "networking.k8s.io/v1",
        "k8s.io.api.networking.v1",
        "IPAddress+ Ingress+ IngressClass+ NetworkPolicy+ ServiceCIDR+",
    ),
    ("node.k8s.io/v1", "k8s.io.api.node.v1", "RuntimeClass+"),
    ("policy/v1", "k8s.io.api.policy.v1", "Eviction PodDisruptionBudget+"),
    // Clients before Kubernetes 1.22 send this version, with the same fields.
    ("policy/v1beta1", "k8s.io.api.policy.v1", "Eviction"),
    ("rbac.authorization.k8s.io/v1", "k8s.io.api.rbac.v1", "ClusterRole+ ClusterRoleBinding+ Role+ RoleBinding+"),
    (
        "resource.k8s.io/v1",
        "k8s.io.api.resource.v1",
        "DeviceClass+ ResourceClaim+ ResourceClaimTemplate+ ResourceSlice+",
    ),
    ("scheduling.k8s.io/v1", "k8s.io.api.scheduling.v1", "PriorityClass+"),
    (
        "storage.k8s.io/v1",
        "k8s.io.api.storage.v1",
        "CSIDriver+ CSINode+ CSIStorageCapacity+ StorageClass+ VolumeAttachment+ VolumeAttributesClass+",
    ),
    ("storagemigration.k8s.io/v1beta1", "k8s.io.api.storagemigration.v1beta1", "StorageVersionMigration+"),
    ("v1", "k8s.io.apimachinery.pkg.apis.meta.v1", "APIGroup+ APIResourceList APIVersions Status"),
    ("meta.k8s.io/v1", "k8s.io.apimachinery.pkg.apis.meta.v1", "PartialObjectMetadata+"),
    (
        "",
        "k8s.io.apimachinery.pkg.apis.meta.v1",
        "CreateOptions DeleteOptions GetOptions ListOptions PatchOptions UpdateOptions",
    ),
];

/// Kinds and stable packages that no server serves as resources, and why.
const NOT_SERVED: &[(&str, &str)] = &[
    ("api/admission/v1", "AdmissionReview is a message between the server and webhooks, always JSON"),
    ("apimachinery/pkg/apis/testapigroup/v1", "a group of apimachinery's own tests"),
    ("k8s.io.api.core.v1.PodStatusResult", "a message of an old kubelet API"),
];

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let check = args.flag("--check");
    let release = args.value("--release")?.unwrap_or_else(|| RELEASE.to_owned());
    let dir = args.value("--sources")?;
    args.finish("codegen")?;
    let dir = match dir {
        Some(dir) => dir.into(),
        None => sources::fetch(&release)?,
    };
    let (text, absent) = generate(&release, &dir)?;
    for name in absent {
        println!("not in the table: {name}");
    }
    let path = tools::root().join(TABLE);
    if !check {
        std::fs::write(&path, &text)?;
        println!("{TABLE}: {} lines", text.lines().count());
        return Ok(());
    }
    let present = std::fs::read_to_string(&path)?;
    if let Some(line) = present.lines().zip(text.lines()).position(|(old, new)| old != new) {
        fail!("{TABLE}:{}: not what {release} says; run codegen without --check", line + 1);
    }
    ensure!(present == text, "{TABLE} is not as long as it should be; run codegen without --check");
    println!("{TABLE} is what {release} says");
    Ok(())
}

/// The table of one release, and which of its stable kinds and packages are not in the table.
fn generate(release: &str, dir: &Path) -> Outcome<(String, Vec<String>)> {
    let mut sources = Sources::default();
    for (package, path, _) in PACKAGES {
        let folder = dir.join(path.trim_start_matches("k8s.io/"));
        sources.read(package, path, &folder).map_err(|error| error.while_doing(folder.display()))?;
    }
    let mut kinds = BTreeMap::new();
    for (api_version, package, names) in KINDS {
        for kind in names.split_whitespace() {
            let name = kind.trim_end_matches('+');
            kinds.insert((api_version.to_string(), name.to_owned()), format!("{package}.{name}"));
            if kind.ends_with('+') {
                kinds.insert((api_version.to_string(), format!("{name}List")), format!("{package}.{name}List"));
            }
        }
    }
    let mut messages = BTreeMap::new();
    let mut open: Vec<String> = kinds.values().cloned().collect();
    while let Some(name) = open.pop() {
        if messages.contains_key(&name) {
            continue;
        }
        let message = sources.join(&name).map_err(|error| error.while_doing(&name))?;
        open.extend(message.fields.iter().filter_map(|field| field.message.clone()));
        messages.insert(name, message);
    }
    let mut absent = sources.kinds();
    absent.retain(|kind| !messages.contains_key(kind));
    absent.extend(sources::stable_packages(dir)?.into_iter().filter(|found| {
        let known = |(_, path, _): &(&str, &str, &str)| path.trim_start_matches("k8s.io/") == found;
        !PACKAGES.iter().any(known)
    }));
    absent.retain(|name| !NOT_SERVED.iter().any(|(known, _)| known == name));
    absent.sort();
    Ok((print::table(release, &kinds, &messages)?, absent))
}
