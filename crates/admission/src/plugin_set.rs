//! [`AdmissionPlugins`]: the set of built-in plugins that a server runs.
//!
//! Source: `pkg/kubeapiserver/options/plugins.go` (order and defaults), `apiserver/pkg/server/options/admission.go`
//! (flags).

use std::collections::BTreeSet;
use std::fmt;

/// One of upstream's plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginInfo {
    /// The name in `--enable-admission-plugins`.
    pub name: &'static str,
    /// Whether kube-apiserver enables the plugin by default.
    pub default_on: bool,
    /// Whether this server has the plugin. Also true for plugins whose feature gate is off by default, because they
    /// have no effect in kube-apiserver.
    pub available: bool,
}

const fn plugin(name: &'static str, default_on: bool, available: bool) -> PluginInfo {
    PluginInfo { name, default_on, available }
}

/// All plugins of kube-apiserver 1.36, in the order in which they run (`AllOrderedPlugins`).
#[rustfmt::skip]
pub const PLUGINS: [PluginInfo; 41] = [
    plugin("AlwaysAdmit", false, true),
    plugin("NamespaceAutoProvision", false, true),
    plugin("NamespaceLifecycle", true, true),
    plugin("NamespaceExists", false, true),
    plugin("LimitPodHardAntiAffinityTopology", false, true),
    plugin("LimitRanger", true, true),
    plugin("ServiceAccount", true, true),
    plugin("NodeRestriction", false, true),
    plugin("TaintNodesByCondition", true, true),
    plugin("AlwaysPullImages", false, true),
    plugin("ImagePolicyWebhook", false, false),
    plugin("PodSecurity", true, true),
    plugin("PodNodeSelector", false, true),
    plugin("Priority", true, true),
    plugin("DefaultTolerationSeconds", true, true),
    plugin("PodTolerationRestriction", false, true),
    plugin("EventRateLimit", false, true),
    plugin("ExtendedResourceToleration", false, true),
    plugin("DefaultStorageClass", true, true),
    plugin("StorageObjectInUseProtection", true, true),
    plugin("PodGroupProtection", true, true),
    plugin("OwnerReferencesPermissionEnforcement", false, true),
    plugin("PersistentVolumeClaimResize", true, true),
    plugin("RuntimeClass", true, true),
    plugin("CertificateApproval", true, true),
    plugin("CertificateSigning", true, true),
    plugin("ClusterTrustBundleAttest", true, true),
    plugin("CertificateSubjectRestriction", true, true),
    plugin("DefaultIngressClass", true, true),
    plugin("DenyServiceExternalIPs", false, true),
    plugin("PodTopologyLabels", true, true),
    plugin("PodGroupWorkloadExists", true, true),
    plugin("NodeDeclaredFeatureValidator", true, true),
    plugin("JobValidation", true, true),
    plugin("PodResizeValidator", true, true),
    plugin("MutatingAdmissionPolicy", true, true),
    plugin("MutatingAdmissionWebhook", true, true),
    plugin("ValidatingAdmissionPolicy", true, true),
    plugin("ValidatingAdmissionWebhook", true, true),
    plugin("ResourceQuota", true, true),
    plugin("AlwaysDeny", false, true),
];

/// The position of a plugin in the order. Custom plugins come after the built-in plugins that read only the object, and
/// before policies, webhooks and ResourceQuota.
pub(crate) fn position(name: &str) -> usize {
    let find = |name: &str| PLUGINS.iter().position(|plugin| plugin.name == name);
    // Twice the index leaves room between two plugins.
    match find(name) {
        Some(index) => 2 * index,
        None => 2 * find("MutatingAdmissionPolicy").unwrap_or(PLUGINS.len()) - 1,
    }
}

/// The set of built-in plugins that a server runs. The default has the plugins that kube-apiserver enables, except
/// ServiceAccount, as in the test environments of controller-runtime: without a controller, no account `default` exists
/// in a new namespace, and the plugin rejects all pods.
///
/// StorageObjectInUseProtection needs the controllers `pvc-protection` and `pv-protection` of this server or of
/// kube-controller-manager. Without them, a deleted claim stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionPlugins {
    /// One bit for each plugin of [`PLUGINS`].
    bits: u64,
}

impl Default for AdmissionPlugins {
    fn default() -> Self {
        AdmissionPlugins::upstream().with("ServiceAccount", false)
    }
}

/// The error of flags that do not select a valid set of plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidPlugins {
    /// A flag contains a plugin that kube-apiserver does not have.
    Unknown {
        /// The flag, without dashes.
        flag: &'static str,
        /// The name of the unknown plugin.
        name: String,
    },
    /// The same plugins are enabled and disabled.
    Overlapping(Vec<String>),
    /// `--admission-control` is given together with one of the two other flags.
    Exclusive,
}

impl fmt::Display for InvalidPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidPlugins::Unknown { flag, name } => {
                write!(f, "{flag} plugin {} is unknown", listwatch_meta::go::quote(name))
            }
            InvalidPlugins::Overlapping(names) => {
                write!(f, "[{}] in enable-admission-plugins and disable-admission-plugins overlapped", names.join(" "))
            }
            InvalidPlugins::Exclusive => f.write_str(
                "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive",
            ),
        }
    }
}

impl std::error::Error for InvalidPlugins {}

impl AdmissionPlugins {
    /// The set without plugins.
    pub const NONE: AdmissionPlugins = AdmissionPlugins { bits: 0 };

    /// The plugins that kube-apiserver enables by default.
    pub fn upstream() -> Self {
        PLUGINS.iter().fold(AdmissionPlugins::NONE, |set, plugin| set.with(plugin.name, plugin.default_on))
    }

    /// The plugins that the flags `--enable-admission-plugins`, `--disable-admission-plugins` and
    /// `--admission-control` select, starting from kube-apiserver's default.
    ///
    /// # Errors
    /// The lists contain an unknown plugin, or contradict each other.
    pub fn from_flags(enable: &[&str], disable: &[&str], only: &[&str]) -> Result<Self, InvalidPlugins> {
        for (flag, names) in
            [("enable-admission-plugins", enable), ("disable-admission-plugins", disable), ("admission-control", only)]
        {
            if let Some(name) = names.iter().find(|name| !PLUGINS.iter().any(|plugin| plugin.name == **name)) {
                return Err(InvalidPlugins::Unknown { flag, name: (*name).to_owned() });
            }
        }
        if !only.is_empty() {
            return match enable.is_empty() && disable.is_empty() {
                true => Ok(only.iter().fold(AdmissionPlugins::NONE, |set, name| set.with(name, true))),
                false => Err(InvalidPlugins::Exclusive),
            };
        }
        let both: BTreeSet<&str> = enable.iter().filter(|name| disable.contains(name)).copied().collect();
        if !both.is_empty() {
            return Err(InvalidPlugins::Overlapping(both.into_iter().map(str::to_owned).collect()));
        }
        let set = enable.iter().fold(AdmissionPlugins::upstream(), |set, name| set.with(name, true));
        Ok(disable.iter().fold(set, |set, name| set.with(name, false)))
    }

    /// Returns the set with or without one plugin. Names that are not in [`PLUGINS`] have no effect.
    #[must_use]
    pub fn with(mut self, name: &str, on: bool) -> Self {
        if let Some(index) = PLUGINS.iter().position(|plugin| plugin.name == name) {
            if on {
                self.bits |= 1 << index;
            } else {
                self.bits &= !(1 << index);
            }
        }
        self
    }

    /// Whether the set has this plugin.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.enabled().any(|plugin| plugin.name == name)
    }

    /// The plugins of the set, in the order in which they run.
    pub fn enabled(&self) -> impl Iterator<Item = &'static PluginInfo> + use<> {
        let bits = self.bits;
        PLUGINS.iter().enumerate().filter(move |(index, _)| bits & (1 << index) != 0).map(|(_, plugin)| plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(enable: &[&str], disable: &[&str], only: &[&str], expected: Result<&[&str], &str>) {
        let found = AdmissionPlugins::from_flags(enable, disable, only).map_err(|error| error.to_string());
        let difference = found.map(|found| {
            let upstream = AdmissionPlugins::upstream();
            let changed = PLUGINS.iter().filter(|p| found.is_enabled(p.name) != upstream.is_enabled(p.name));
            changed.map(|plugin| plugin.name).collect::<Vec<_>>()
        });
        assert_eq!(difference.as_deref().map_err(String::as_str), expected, "{enable:?} {disable:?} {only:?}");
    }

    #[test]
    fn plugin_flags_select_plugins_and_unknown_or_contradictory_names_are_rejected() {
        check(&[], &[], &[], Ok(&[]));
        check(&["NodeRestriction", "Priority"], &["LimitRanger"], &[], Ok(&["LimitRanger", "NodeRestriction"]));
        check(&["Nope"], &[], &[], Err("enable-admission-plugins plugin \"Nope\" is unknown"));
        check(&[], &["Nope"], &[], Err("disable-admission-plugins plugin \"Nope\" is unknown"));
        check(&[], &[], &["Nope"], Err("admission-control plugin \"Nope\" is unknown"));
        let overlapping = "[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped";
        check(&["Priority", "LimitRanger"], &["LimitRanger", "Priority"], &[], Err(overlapping));
        let exclusive =
            "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive";
        check(&[], &["Priority"], &["Priority"], Err(exclusive));
        let only = AdmissionPlugins::from_flags(&[], &[], &["ResourceQuota", "Priority"]).unwrap();
        let names: Vec<&str> = only.enabled().map(|plugin| plugin.name).collect();
        assert_eq!(names, ["Priority", "ResourceQuota"], "the order is upstream's");
    }

    #[test]
    fn default_plugin_set_excludes_service_account() {
        let (default, upstream) = (AdmissionPlugins::default(), AdmissionPlugins::upstream());
        assert_eq!(upstream.enabled().count(), 27);
        assert!(upstream.is_enabled("ServiceAccount") && !default.is_enabled("ServiceAccount"));
        assert_eq!(default.with("ServiceAccount", true), upstream);
        assert!(!upstream.is_enabled("NodeRestriction") && !upstream.is_enabled("Nope"));
    }

    #[test]
    fn custom_plugin_runs_after_built_in_plugins_and_before_webhooks_and_quota() {
        assert!(position("PodResizeValidator") < position("Mine"));
        for later in ["MutatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota"] {
            assert!(position("Mine") < position(later), "{later}");
        }
    }
}
