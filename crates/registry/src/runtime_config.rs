//! [`RuntimeConfig`]: selects the group versions and resources of the built-in kinds that a server serves
//! (`--runtime-config`).
//!
//! Source: `apiserver/pkg/server/options/api_enablement.go`, `apiserver/pkg/server/resourceconfig/helpers.go`.

use std::fmt;

use crate::builtin;
use crate::resource::Resource;

/// Group versions that kube-apiserver 1.36 contains but does not serve by default, and that this server does not
/// contain.
const UNAVAILABLE: [(&str, &str); 41] = [
    ("admissionregistration.k8s.io", "v1alpha1"),
    ("admissionregistration.k8s.io", "v1beta1"),
    ("apiextensions.k8s.io", "v1beta1"),
    ("apiregistration.k8s.io", "v1beta1"),
    ("apps", "v1beta1"),
    ("apps", "v1beta2"),
    ("authentication.k8s.io", "v1alpha1"),
    ("authentication.k8s.io", "v1beta1"),
    ("authorization.k8s.io", "v1beta1"),
    ("autoscaling", "v2beta1"),
    ("autoscaling", "v2beta2"),
    ("batch", "v1beta1"),
    ("certificates.k8s.io", "v1alpha1"),
    ("certificates.k8s.io", "v1beta1"),
    ("coordination.k8s.io", "v1alpha2"),
    ("coordination.k8s.io", "v1beta1"),
    ("discovery.k8s.io", "v1beta1"),
    ("events.k8s.io", "v1beta1"),
    ("extensions", "v1beta1"),
    ("flowcontrol.apiserver.k8s.io", "v1beta1"),
    ("flowcontrol.apiserver.k8s.io", "v1beta2"),
    ("flowcontrol.apiserver.k8s.io", "v1beta3"),
    ("imagepolicy.k8s.io", "v1alpha1"),
    ("internal.apiserver.k8s.io", "v1alpha1"),
    ("networking.k8s.io", "v1alpha1"),
    ("networking.k8s.io", "v1beta1"),
    ("node.k8s.io", "v1alpha1"),
    ("node.k8s.io", "v1beta1"),
    ("policy", "v1beta1"),
    ("rbac.authorization.k8s.io", "v1alpha1"),
    ("rbac.authorization.k8s.io", "v1beta1"),
    ("resource.k8s.io", "v1alpha3"),
    ("resource.k8s.io", "v1beta1"),
    ("resource.k8s.io", "v1beta2"),
    ("scheduling.k8s.io", "v1alpha1"),
    ("scheduling.k8s.io", "v1alpha2"),
    ("scheduling.k8s.io", "v1beta1"),
    ("storage.k8s.io", "v1alpha1"),
    ("storage.k8s.io", "v1beta1"),
    ("storagemigration.k8s.io", "v1"),
    ("storagemigration.k8s.io", "v1alpha1"),
];

/// Keys that select all versions of a stability level, in the order of evaluation.
const LEVELS: [(&str, Level); 4] =
    [("api/all", Level::All), ("api/ga", Level::Stable), ("api/beta", Level::Beta), ("api/alpha", Level::Alpha)];

/// The stability level of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    All,
    Stable,
    Beta,
    Alpha,
}

impl Level {
    /// Parses the stability level from the name of a version. Returns `None` for any other name.
    fn of(version: &str) -> Option<Level> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (major, suffix) = rest.split_at(digits);
        match (is_number(major), suffix) {
            (true, "") => Some(Level::Stable),
            (true, suffix) if suffix.strip_prefix("beta").is_some_and(is_number) => Some(Level::Beta),
            (true, suffix) if suffix.strip_prefix("alpha").is_some_and(is_number) => Some(Level::Alpha),
            _ => None,
        }
    }
}

/// The resources that an item enables or disables.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Level(Level),
    Version { group: String, version: String },
    Resource { group: String, version: String, plural: String },
}

/// The group versions and resources that a server serves. By default, all built-in resources in stable versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// The switches, from general to specific. The last switch that matches a resource applies.
    switches: Vec<(Scope, bool)>,
    /// The keys that enable group versions that this server does not have.
    unavailable: Vec<String>,
}

/// The error of a [`RuntimeConfig`], with kube-apiserver's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRuntimeConfig(String);

impl fmt::Display for InvalidRuntimeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidRuntimeConfig {}

impl RuntimeConfig {
    /// Parses the items of the flag: `api/all=false`, `batch/v1=true`, `batch/v1/jobs=false`. A key without a value
    /// enables. If a key is repeated, the last item applies.
    ///
    /// # Errors
    /// A key that is not of this form, an unknown group or version, a value that is not a boolean, or `api/all=false`
    /// alone.
    pub fn parse<'a>(items: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidRuntimeConfig> {
        let mut values: Vec<(&str, bool)> = Vec::new();
        for item in items {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let (key, value) = (key.trim(), value.trim());
            let on = parse_bool(value).ok_or_else(|| {
                let why = format!("strconv.ParseBool: parsing {value:?}: invalid syntax");
                InvalidRuntimeConfig(format!("invalid value of {key}: {value}, err: {why}"))
            })?;
            values.retain(|(known, _)| *known != key);
            values.push((key, on));
        }
        if values == [("api/all", false)] {
            return Err(InvalidRuntimeConfig("invalid key with only api/all=false".to_owned()));
        }
        let mut config = RuntimeConfig::default();
        for (key, level) in LEVELS {
            let Some((_, on)) = values.iter().find(|(known, _)| *known == key) else { continue };
            config.switches.push((Scope::Level(level), *on));
            // This server has one beta version, and no alpha version, of what kube-apiserver does not serve by default.
            if *on && level != Level::Stable {
                config.unavailable.push(key.to_owned());
            }
        }
        let known: Vec<(&str, &str)> = builtin::group_versions().chain(UNAVAILABLE).collect();
        let mut unknown_groups = Vec::new();
        let mut resources = Vec::new();
        for (key, on) in values.iter().filter(|(key, _)| LEVELS.iter().all(|(level, _)| level != key)) {
            let (group, version, plural) = match key.split('/').collect::<Vec<_>>()[..] {
                [group, version] => (group, version, None),
                [group, version, plural] => (group, version, Some(plural)),
                _ => return Err(InvalidRuntimeConfig(format!("runtime-config invalid key {key}"))),
            };
            if !known.iter().any(|(known, _)| *known == group) {
                unknown_groups.push(group);
                continue;
            }
            if !known.contains(&(group, version)) {
                let text = format!("group version {group}/{version} that has not been registered");
                return Err(InvalidRuntimeConfig(text));
            }
            if *on
                && UNAVAILABLE.contains(&(group, version))
                && !builtin::group_versions().any(|has| has == (group, version))
            {
                config.unavailable.push((*key).to_owned());
            }
            let (group, version) = (group.to_owned(), version.to_owned());
            match plural {
                None => config.switches.push((Scope::Version { group, version }, *on)),
                Some(plural) => resources.push((Scope::Resource { group, version, plural: plural.to_owned() }, *on)),
            }
        }
        if !unknown_groups.is_empty() {
            return Err(InvalidRuntimeConfig(format!("unknown api groups {}", unknown_groups.join(","))));
        }
        config.switches.extend(resources);
        Ok(config)
    }

    /// The keys that enable group versions that this server does not have.
    pub fn unavailable(&self) -> &[String] {
        &self.unavailable
    }

    /// Whether the server serves a resource of its built-in kinds.
    pub(crate) fn serves(&self, resource: &Resource) -> bool {
        let concerns = |scope: &Scope| match scope {
            Scope::Level(level) => *level == Level::All || Level::of(&resource.version) == Some(*level),
            Scope::Version { group, version } => (group, version) == (&resource.group, &resource.version),
            Scope::Resource { group, version, plural } => {
                (group, version, plural) == (&resource.group, &resource.version, &resource.plural)
            }
        };
        let switched = self.switches.iter().rev().find(|(scope, _)| concerns(scope));
        switched.map_or_else(|| Level::of(&resource.version) == Some(Level::Stable), |(_, on)| *on)
    }
}

/// Parses a value as Go's `strconv.ParseBool` does. An absent value is true.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "" | "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{BuiltinOptions, Registry};

    fn registry(items: &str) -> Registry {
        let runtime_config = RuntimeConfig::parse(items.split(',')).unwrap();
        Registry::configured(&BuiltinOptions { runtime_config, ..BuiltinOptions::default() })
    }

    #[test]
    fn disabled_group_versions_and_resources_are_not_in_the_registry() {
        let check = |items: &str, group: &str, version: &str, plural: &str, expected: bool| {
            let registry = registry(items);
            let found = registry.find(group, version, plural).is_some()
                || registry.find_unstored(group, version, plural).is_some();
            assert_eq!(found, expected, "{items}: {group}/{version}/{plural}");
        };
        for (items, expected) in [
            ("batch/v1=false", false),
            ("batch/v1/jobs=false", false),
            ("batch/v1/cronjobs=false", true),
            ("api/all=false,batch/v1=true", true),
            ("api/all=false,batch/v1/jobs", true),
            ("api/all=false,apps/v1=true", false),
            ("api/ga=false", false),
            ("api/beta=false,api/alpha=false", true),
            ("api/ga=false,batch/v1=true", true),
            ("batch/v1=false,batch/v1=true", true),
            ("batch/v1=true,batch/v1/jobs=0", false),
        ] {
            check(items, "batch", "v1", "jobs", expected);
        }
        check("/v1=false", "", "v1", "pods", false);
        check("autoscaling/v1=false", "autoscaling", "v2", "horizontalpodautoscalers", true);
        check("autoscaling/v2=false", "autoscaling", "v1", "horizontalpodautoscalers", true);
        check("authorization.k8s.io/v1=false", "authorization.k8s.io", "v1", "subjectaccessreviews", false);
        let without = registry("batch/v1=false");
        assert!(!without.has_group("batch") && !without.has_group_version("batch", "v1"));
    }

    #[test]
    fn beta_versions_are_served_only_if_enabled() {
        let serves = |items: &str| {
            registry(items).find("storagemigration.k8s.io", "v1beta1", "storageversionmigrations").is_some()
        };
        for (items, expected) in [
            ("batch/v1=true", false),
            ("api/ga=true", false),
            ("api/beta=true", true),
            ("api/all=true", true),
            ("api/all=true,api/beta=false", false),
            ("storagemigration.k8s.io/v1beta1=true", true),
            ("storagemigration.k8s.io/v1beta1/storageversionmigrations=true", true),
        ] {
            assert_eq!(serves(items), expected, "{items}");
        }
        assert!(!Registry::builtin().has_group("storagemigration.k8s.io"), "nothing is switched on");
    }

    #[test]
    fn invalid_runtime_config_items_are_rejected_with_the_text_of_kube_apiserver() {
        for (items, expected) in [
            ("api/all=false", "invalid key with only api/all=false"),
            ("batch=false", "runtime-config invalid key batch"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("nonsense/v1=true,batch/v1=true,other/v1=false", "unknown api groups nonsense,other"),
            ("batch/v7=true", "group version batch/v7 that has not been registered"),
            (
                "batch/v1=maybe",
                "invalid value of batch/v1: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ] {
            let error = RuntimeConfig::parse(items.split(',')).unwrap_err();
            assert_eq!(error.to_string(), expected, "{items}");
        }
    }

    #[test]
    fn runtime_config_keys_of_absent_group_versions_are_reported() {
        let unavailable = |items: &str| RuntimeConfig::parse(items.split(',')).unwrap().unavailable().join(",");
        assert_eq!(unavailable("api/all=true,api/ga=true,batch/v1=true"), "api/all");
        assert_eq!(unavailable("storage.k8s.io/v1alpha1=true,apps/v1beta1=false"), "storage.k8s.io/v1alpha1");
    }
}
