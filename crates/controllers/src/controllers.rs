//! [`Controllers`]: the set of controllers that a server runs, and recovery of their jobs from panics.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::str::FromStr;

use futures_util::FutureExt as _;

/// The set of controllers to run. The controllers replace the parts of kube-controller-manager that API clients depend
/// on. By default, all controllers run except `serviceaccount` and `root-ca-cert-publisher`, which create objects in
/// each namespace. Several servers on one store may all run the same controllers.
///
/// Parsed from the comma-separated list of the flag `--controllers`:
///
/// | list | controllers |
/// |---|---|
/// | `namespace,gc` | the named controllers |
/// | `*` | all controllers |
/// | `*,-gc` | all controllers except `gc` |
/// | empty | none |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// Deletes the content of terminating namespaces, then removes their finalizer. Without this controller,
    /// deleted namespaces stay in phase Terminating.
    pub namespace: bool,
    /// Deletes the dependents of absent owners, and completes foreground and orphan deletions. Without this
    /// controller, objects deleted in these ways keep their finalizers.
    pub gc: bool,
    /// Writes the rules of aggregated ClusterRoles. Runs only with RBAC. Without this controller, the roles `admin`,
    /// `edit` and `view` grant nothing.
    pub clusterrole_aggregation: bool,
    /// Counts the usage of the quotas of each namespace. Without this controller, quotas have no effect.
    pub resource_quota: bool,
    /// Keeps PersistentVolumeClaims while pods use them. If only the admission plugin StorageObjectInUseProtection
    /// runs, deleted claims are never removed.
    pub pvc_protection: bool,
    /// Keeps PersistentVolumes while they are bound to claims.
    pub pv_protection: bool,
    /// Keeps VolumeAttributesClasses while claims or volumes name them.
    pub vac_protection: bool,
    /// Writes the status of ValidatingAdmissionPolicies: the result of type checks.
    pub validating_admission_policy_status: bool,
    /// Carries out StorageVersionMigrations, if the server serves that resource.
    pub storage_version_migrator: bool,
    /// Marks ServiceCIDRs as ready, and keeps a deleted one while services have addresses that no other ServiceCIDR
    /// contains. Without this controller, ServiceCIDRs have no condition, and their deletion is immediate.
    pub service_cidr: bool,
    /// Creates the service account `default` in each namespace, which the admission plugin ServiceAccount needs. Off by
    /// default.
    pub service_account: bool,
    /// Creates the ConfigMap `kube-root-ca.crt` in each namespace, if the server knows its root CA. Off by default.
    pub root_ca: bool,
}

/// The list contains a name that is not the name of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not in the list of known controllers: namespace, gc, clusterrole-aggregation, resourcequota, pvc-protection, pv-protection, volumeattributesclass-protection-controller, validatingadmissionpolicy-status, storage-version-migrator-controller, service-cidr-controller, serviceaccount, root-ca-cert-publisher"
)]
pub struct UnknownController(String);

impl Controllers {
    /// The empty set: no controller runs.
    pub const NONE: Controllers = Controllers {
        namespace: false,
        gc: false,
        clusterrole_aggregation: false,
        resource_quota: false,
        pvc_protection: false,
        pv_protection: false,
        vac_protection: false,
        validating_admission_policy_status: false,
        storage_version_migrator: false,
        service_cidr: false,
        service_account: false,
        root_ca: false,
    };
    /// The full set: every controller runs.
    pub const ALL: Controllers = Controllers {
        namespace: true,
        gc: true,
        clusterrole_aggregation: true,
        resource_quota: true,
        pvc_protection: true,
        pv_protection: true,
        vac_protection: true,
        validating_admission_policy_status: true,
        storage_version_migrator: true,
        service_cidr: true,
        service_account: true,
        root_ca: true,
    };
}

impl Default for Controllers {
    fn default() -> Self {
        let mut controllers = Controllers::ALL;
        controllers.service_account = false;
        controllers.root_ca = false;
        controllers
    }
}

impl FromStr for Controllers {
    type Err = UnknownController;

    fn from_str(list: &str) -> Result<Self, UnknownController> {
        let mut controllers = Controllers::NONE;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (bare, on) = name.strip_prefix('-').map_or((name, true), |bare| (bare, false));
            match bare {
                "*" if on => controllers = Controllers::ALL,
                "namespace" => controllers.namespace = on,
                "gc" => controllers.gc = on,
                "clusterrole-aggregation" => controllers.clusterrole_aggregation = on,
                "resourcequota" => controllers.resource_quota = on,
                "pvc-protection" => controllers.pvc_protection = on,
                "pv-protection" => controllers.pv_protection = on,
                "volumeattributesclass-protection-controller" => controllers.vac_protection = on,
                "validatingadmissionpolicy-status" => controllers.validating_admission_policy_status = on,
                "storage-version-migrator-controller" => controllers.storage_version_migrator = on,
                "service-cidr-controller" => controllers.service_cidr = on,
                "serviceaccount" => controllers.service_account = on,
                "root-ca-cert-publisher" => controllers.root_ca = on,
                _ => return Err(UnknownController(name.to_owned())),
            }
        }
        Ok(controllers)
    }
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            ("namespace", self.namespace),
            ("gc", self.gc),
            ("clusterrole-aggregation", self.clusterrole_aggregation),
            ("resourcequota", self.resource_quota),
            ("pvc-protection", self.pvc_protection),
            ("pv-protection", self.pv_protection),
            ("volumeattributesclass-protection-controller", self.vac_protection),
            ("validatingadmissionpolicy-status", self.validating_admission_policy_status),
            ("storage-version-migrator-controller", self.storage_version_migrator),
            ("service-cidr-controller", self.service_cidr),
            ("serviceaccount", self.service_account),
            ("root-ca-cert-publisher", self.root_ca),
        ];
        let on: Vec<&str> = names.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        f.write_str(&on.join(","))
    }
}

/// Runs a job and returns `None` if the job panics. The caller must then still finish the entry of `subject`. Otherwise
/// the subject would stay marked as in progress forever.
pub(crate) async fn catch_panic<T>(subject: &str, work: impl Future<Output = T>) -> Option<T> {
    // The job shares only the store and the caches, which other tasks keep using after a panic as well.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => Some(done),
        Err(_) => {
            // The panic hook has already logged the panic itself.
            tracing::error!(subject, "the work on an item panicked; it is retried");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str, expected: Result<(bool, bool), &str>) {
        let found = list.parse::<Controllers>();
        let found = found.map(|on| (on.namespace, on.gc)).map_err(|error| error.0);
        assert_eq!(found, expected.map_err(str::to_owned), "{list:?}");
    }

    #[test]
    fn controllers_list_is_parsed_and_unknown_names_are_rejected() {
        check("namespace,gc", Ok((true, true)));
        check(" gc ", Ok((false, true)));
        check("", Ok((false, false)));
        check("*", Ok((true, true)));
        check("*,-gc", Ok((true, false)));
        check("gc,deployment", Err("deployment"));
        check("-*", Err("-*"));
        assert_eq!(
            Controllers::default().to_string(),
            "namespace,gc,clusterrole-aggregation,resourcequota,pvc-protection,pv-protection,volumeattributesclass-protection-controller,validatingadmissionpolicy-status,storage-version-migrator-controller,service-cidr-controller"
        );
        assert_eq!("*".parse(), Ok(Controllers::ALL));
        assert_eq!(Controllers::ALL.to_string().parse(), Ok(Controllers::ALL));
        assert!("clusterrole-aggregation".parse::<Controllers>().unwrap().clusterrole_aggregation);
        assert_eq!(Controllers::NONE.to_string().parse(), Ok(Controllers::NONE));
    }
}
