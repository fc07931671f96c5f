//! [`AdmissionConfiguration`]: the file of `--admission-control-config-file` (`apiserver.config.k8s.io/v1`).

use std::collections::BTreeMap;
use std::fmt;

use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_validation::{Object, given, objects, text, texts};

use super::default_toleration_seconds::TolerationSeconds;
use super::event_rate_limit::EventLimit;
use super::plugin_set::PLUGINS;
use super::pod_node_selector::PodNodeSelector;
use super::pod_security::PodSecurityConfiguration;
use super::pod_toleration_restriction::TolerationRestriction;
use super::resource_quota::scopes::Requirement;

/// The configuration of the plugins that take one.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfiguration {
    /// The configuration of PodSecurity.
    pub pod_security: PodSecurityConfiguration,
    /// The resources that cannot be used without a quota (ResourceQuota).
    pub limited_resources: Vec<LimitedResource>,
    /// The limits of EventRateLimit. Without any, the plugin limits nothing.
    pub event_limits: Vec<EventLimit>,
    /// The selectors of PodNodeSelector by namespace, and the default under `clusterDefaultNodeSelector`.
    pub node_selectors: BTreeMap<String, String>,
    /// The configuration of PodTolerationRestriction.
    pub tolerations: TolerationRestriction,
    /// The tolerations that DefaultTolerationSeconds adds. Flags set them; the file has no entry for this plugin.
    pub toleration_seconds: TolerationSeconds,
}

/// A resource whose use needs a quota (`resourcequotaapi.LimitedResource`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedResource {
    /// The API group of the objects that use the resource.
    pub(crate) api_group: String,
    /// The plural name of the resource of these objects.
    pub(crate) resource: String,
    /// Substrings of resource names. A resource whose name contains one of them needs a quota.
    pub(crate) match_contains: Vec<String>,
    /// Scopes. Objects in one of them need a quota with that scope.
    pub(crate) match_scopes: Vec<Requirement>,
}

/// The error of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConfiguration(String);

impl fmt::Display for InvalidConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidConfiguration {}

impl AdmissionConfiguration {
    /// Reads an `AdmissionConfiguration` in YAML or JSON. `read` reads the file at a path of the configuration.
    ///
    /// # Errors
    /// The file has another kind or an invalid value, or contains a plugin that is unknown or has no configuration.
    pub fn from_yaml(
        file: &str,
        mut read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, InvalidConfiguration> {
        let value = |text: &str| yaml_serde::from_str::<Value>(text).map_err(|error| error.to_string());
        AdmissionConfiguration::parse(&value(file).map_err(InvalidConfiguration)?, |path| value(&read(path)?))
    }

    fn parse(file: &Value, mut load: impl FnMut(&str) -> Result<Value, String>) -> Result<Self, InvalidConfiguration> {
        let invalid = |why: String| InvalidConfiguration(why);
        let file = typed(file, &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"], "AdmissionConfiguration");
        let file = file.map_err(invalid)?;
        let mut configuration = AdmissionConfiguration::default();
        for (_, plugin) in objects(file, "plugins") {
            let name = text(plugin, "name");
            let of_plugin = |why: String| InvalidConfiguration(format!("plugin {}: {why}", quote(name)));
            if !PLUGINS.iter().any(|known| known.name == name) {
                return Err(of_plugin("the plugin is unknown".to_owned()));
            }
            let loaded = match given(plugin, "configuration") {
                Some(inline) => inline.clone(),
                None if text(plugin, "path").is_empty() => continue,
                None => load(text(plugin, "path")).map_err(of_plugin)?,
            };
            configuration.read_plugin(name, &loaded).map_err(of_plugin)?;
        }
        Ok(configuration)
    }

    fn read_plugin(&mut self, name: &str, file: &Value) -> Result<(), String> {
        const POD_SECURITY: [&str; 3] = [
            "pod-security.admission.config.k8s.io/v1",
            "pod-security.admission.config.k8s.io/v1beta1",
            "pod-security.admission.config.k8s.io/v1alpha1",
        ];
        const QUOTA: [&str; 3] = [
            "apiserver.config.k8s.io/v1",
            "resourcequota.admission.k8s.io/v1beta1",
            "resourcequota.admission.k8s.io/v1alpha1",
        ];
        match name {
            "PodSecurity" => {
                let file = typed(file, &POD_SECURITY, "PodSecurityConfiguration")?;
                self.pod_security = PodSecurityConfiguration::parse(file)?;
            }
            "ResourceQuota" => {
                let file = typed(file, &QUOTA, "ResourceQuotaConfiguration")
                    .or_else(|_| typed(file, &QUOTA, "Configuration"))?;
                self.limited_resources = objects(file, "limitedResources").map(|(_, one)| limited(one)).collect();
            }
            "EventRateLimit" => {
                let file = typed(file, &["eventratelimit.admission.k8s.io/v1alpha1"], "Configuration")?;
                self.event_limits = EventLimit::parse_all(file)?;
            }
            // Upstream reads this file without version and kind.
            "PodNodeSelector" => {
                let file = file.as_object().ok_or("podNodeSelectorPluginConfig is needed")?;
                self.node_selectors = PodNodeSelector::parse(file);
            }
            "PodTolerationRestriction" => {
                let file = typed(file, &["podtolerationrestriction.admission.k8s.io/v1alpha1"], "Configuration")?;
                self.tolerations = TolerationRestriction::parse(file);
            }
            _ => return Err("this server has no configuration of the plugin".to_owned()),
        }
        Ok(())
    }
}

fn limited(object: &Object) -> LimitedResource {
    let owned = |name: &str| text(object, name).to_owned();
    LimitedResource {
        api_group: owned("apiGroup"),
        resource: owned("resource"),
        match_contains: texts(object, "matchContains").map(str::to_owned).collect(),
        match_scopes: objects(object, "matchScopes").map(|(_, requirement)| Requirement::read(requirement)).collect(),
    }
}

/// Returns the object in a file, if it is of this kind in one of these versions.
fn typed<'a>(file: &'a Value, versions: &[&str], kind: &str) -> Result<&'a Object, String> {
    let object = file.as_object().ok_or_else(|| format!("a file with a {kind} is needed"))?;
    let (version, found) = (text(object, "apiVersion"), text(object, "kind"));
    if found != kind || !versions.contains(&version) {
        return Err(format!("no kind {} is registered for version {}", quote(found), quote(version)));
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn parse(plugin: Value) -> Result<AdmissionConfiguration, String> {
        let file =
            json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]});
        let load = |path: &str| match path {
            "quota.yaml" => {
                Ok(json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                "limitedResources": [{"resource": "persistentvolumeclaims", "matchContains": ["gold"]}]}))
            }
            other => Err(format!("no file {other}")),
        };
        AdmissionConfiguration::parse(&file, load).map_err(|error| error.to_string())
    }

    #[test]
    fn plugin_configuration_is_read_inline_or_from_a_file() {
        let found = parse(json!({"name": "ResourceQuota", "path": "quota.yaml"})).unwrap();
        assert_eq!(found.limited_resources[0].match_contains, ["gold"]);
        let inline = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "baseline"}, "exemptions": {"namespaces": ["kube-system"]}});
        let found = parse(json!({"name": "PodSecurity", "configuration": inline})).unwrap();
        assert!(format!("{:?}", found.pod_security).contains("kube-system"));
        let inline = json!({"podNodeSelectorPluginConfig": {"ns": "a=b"}});
        let found = parse(json!({"name": "PodNodeSelector", "configuration": inline})).unwrap();
        assert_eq!(found.node_selectors, BTreeMap::from([("ns".to_owned(), "a=b".to_owned())]));
        let inline = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
            "whitelist": [{"key": "k"}]});
        let found = parse(json!({"name": "PodTolerationRestriction", "configuration": inline})).unwrap();
        assert_ne!(found.tolerations, TolerationRestriction::default());
        let inline = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration",
            "limits": [{"type": "Server", "qps": 1, "burst": 1}]});
        assert_eq!(parse(json!({"name": "EventRateLimit", "configuration": inline})).unwrap().event_limits.len(), 1);
    }

    #[test]
    fn admission_configuration_is_read_from_yaml() {
        let file = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ResourceQuota\n  path: q\n";
        let quota = "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\nlimitedResources:\n- resource: pods\n";
        let found = AdmissionConfiguration::from_yaml(file, |_| Ok(quota.to_owned())).unwrap();
        assert_eq!(found.limited_resources[0].resource, "pods");
        assert!(AdmissionConfiguration::from_yaml(file, |_| Err("gone".to_owned())).is_err());
    }

    #[test]
    fn invalid_admission_configuration_is_rejected() {
        for (plugin, expected) in [
            (json!({"name": "Nope"}), "plugin \"Nope\": the plugin is unknown"),
            (json!({"name": "ResourceQuota", "path": "gone"}), "plugin \"ResourceQuota\": no file gone"),
            (
                json!({"name": "PodSecurity", "configuration": {"kind": "X", "apiVersion": "v1"}}),
                "plugin \"PodSecurity\": no kind \"X\" is registered for version \"v1\"",
            ),
            (
                json!({"name": "EventRateLimit", "configuration": {"kind": "Configuration",
                    "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1"}}),
                "plugin \"EventRateLimit\": limits: Invalid value: null: must not be empty",
            ),
            (
                json!({"name": "ImagePolicyWebhook", "configuration": {}}),
                "plugin \"ImagePolicyWebhook\": this server has no configuration of the plugin",
            ),
        ] {
            assert_eq!(parse(plugin).unwrap_err(), expected);
        }
        let other = json!({"apiVersion": "v1", "kind": "Pod"});
        assert!(AdmissionConfiguration::parse(&other, |_| Err(String::new())).is_err());
    }
}
