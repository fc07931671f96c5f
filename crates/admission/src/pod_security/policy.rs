//! Levels, versions and modes of the Pod Security Standards, and the labels of a namespace that select them
//! (`pod-security-admission/api`).

use std::fmt;

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_validation::{Object, text};

/// The prefix of all labels.
pub(super) const LABEL_PREFIX: &str = "pod-security.kubernetes.io/";

/// The level of a standard. A later level is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// The Kubernetes version of a standard. Checks can differ between versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Version {
    #[default]
    Latest,
    /// `v1.N`.
    Minor(u32),
}

/// A level in a version, e.g. `restricted:latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standard {
    pub(super) level: Level,
    pub(super) version: Version,
}

/// The standards of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Policy {
    pub(super) enforce: Standard,
    pub(super) audit: Standard,
    pub(super) warn: Standard,
}

impl Level {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let minor = text.strip_prefix("v1.").filter(|minor| {
            minor.bytes().all(|byte| byte.is_ascii_digit()) && (*minor == "0" || !minor.starts_with('0'))
        });
        let minor = minor.and_then(|minor| minor.parse().ok());
        minor.map(Version::Minor).ok_or("must be \"latest\" or \"v1.x\"")
    }
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

impl Standard {
    fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

impl Policy {
    /// Whether all modes have the level `privileged`, which allows every pod.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|standard| standard.level == Level::Privileged)
    }

    /// Whether two policies have the same effect.
    pub(super) fn is_equivalent(&self, other: &Policy) -> bool {
        self.enforce.is_equivalent(other.enforce)
            && self.audit.is_equivalent(other.audit)
            && self.warn.is_equivalent(other.warn)
    }

    /// Returns the policy of a namespace with these labels, and the errors of invalid labels. An invalid `enforce`
    /// label enforces the strictest standard. An invalid `audit` or `warn` label has no effect (`PolicyToEvaluate`).
    pub(super) fn of_labels(labels: &Object, defaults: &Policy) -> (Policy, Vec<FieldError>) {
        let (mut policy, mut errors) = (*defaults, Vec::new());
        let mut has_enforce_level = false;
        for mode in ["enforce", "audit", "warn"] {
            let standard = match mode {
                "enforce" => &mut policy.enforce,
                "audit" => &mut policy.audit,
                _ => &mut policy.warn,
            };
            let level = format!("{LABEL_PREFIX}{mode}");
            let version = format!("{level}-version");
            if let Some(value) = labels.get(&level).and_then(Value::as_str) {
                let fallback = if mode == "enforce" { Level::Restricted } else { Level::Privileged };
                let parsed = Level::parse(value);
                has_enforce_level |= mode == "enforce" && parsed.is_ok();
                standard.level = parsed.unwrap_or_else(|why| {
                    errors.push(invalid(&level, value, why));
                    fallback
                });
            }
            if let Some(value) = labels.get(&version).and_then(Value::as_str) {
                standard.version = Version::parse(value).unwrap_or_else(|why| {
                    errors.push(invalid(&version, value, why));
                    Version::Latest
                });
            }
        }
        let has = |label: &str| labels.contains_key(&format!("{LABEL_PREFIX}{label}"));
        // A stricter enforced level also warns about templates of pods.
        if !has("warn") && has_enforce_level && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !has("warn-version") {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }

    /// Formats the modes that labels set to a standard above privileged: `enforce=restricted:latest, warn=…`.
    pub(super) fn print_set_modes(&self, labels: &Object) -> String {
        let modes = [("enforce", self.enforce), ("audit", self.audit), ("warn", self.warn)];
        let is_set = |mode: &str| {
            labels.contains_key(&format!("{LABEL_PREFIX}{mode}"))
                || labels.contains_key(&format!("{LABEL_PREFIX}{mode}-version"))
        };
        let set = modes.iter().filter(|(mode, standard)| standard.level != Level::Privileged && is_set(mode));
        set.map(|(mode, standard)| format!("{mode}={standard}")).collect::<Vec<_>>().join(", ")
    }

    /// Reads the default policy of the plugin's configuration.
    ///
    /// # Errors
    /// The field and the problem of its value.
    pub(super) fn of_defaults(defaults: &Object) -> Result<Policy, String> {
        let standard = |mode: &str| {
            let version_field = format!("{mode}-version");
            let value = |field: &str, otherwise: &str| match text(defaults, field) {
                "" => otherwise.to_owned(),
                value => value.to_owned(),
            };
            let level = value(mode, "privileged");
            let level =
                Level::parse(&level).map_err(|why| format!("defaults.{mode}: Invalid value: {level:?}: {why}"))?;
            let version = value(&version_field, "latest");
            let version = Version::parse(&version)
                .map_err(|why| format!("defaults.{version_field}: Invalid value: {version:?}: {why}"))?;
            Ok::<_, String>(Standard { level, version })
        };
        Ok(Policy { enforce: standard("enforce")?, audit: standard("audit")?, warn: standard("warn")? })
    }
}

fn invalid(label: &str, value: &str, why: &str) -> FieldError {
    FieldError::invalid_text(format!("metadata.labels[{label}]"), value, why)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::super::testing::object;
    use super::*;

    fn check(labels: Value, expected: [&str; 3], errors: &[&str]) {
        let labels: Object =
            object(labels).into_iter().map(|(key, value)| (format!("{LABEL_PREFIX}{key}"), value)).collect();
        let (policy, found) = Policy::of_labels(&labels, &Policy::default());
        let shown = [policy.enforce, policy.audit, policy.warn].map(|standard| standard.to_string());
        assert_eq!(shown, expected, "{labels:?}");
        let found: Vec<String> = found.iter().map(|error| error.field.clone()).collect();
        let errors: Vec<String> =
            errors.iter().map(|label| format!("metadata.labels[{LABEL_PREFIX}{label}]")).collect();
        assert_eq!(found, errors, "{labels:?}");
    }

    #[test]
    fn namespace_labels_select_standards_and_invalid_labels_are_reported() {
        let none = "privileged:latest";
        check(json!({}), [none; 3], &[]);
        check(json!({"enforce": "baseline"}), ["baseline:latest", none, "baseline:latest"], &[]);
        check(
            json!({"enforce": "restricted", "enforce-version": "v1.25"}),
            ["restricted:v1.25", none, "restricted:v1.25"],
            &[],
        );
        check(json!({"enforce": "baseline", "warn": "privileged"}), ["baseline:latest", none, none], &[]);
        check(
            json!({"audit": "restricted", "warn": "baseline", "warn-version": "v1.0"}),
            [none, "restricted:latest", "baseline:v1.0"],
            &[],
        );
        check(
            json!({"enforce": "x", "audit": "y", "warn": "z"}),
            ["restricted:latest", none, none],
            &["enforce", "audit", "warn"],
        );
        for version in ["1.25", "v1", "v1.01", "v2.1", "", "v1.x"] {
            check(
                json!({"warn": "baseline", "warn-version": version}),
                [none, none, "baseline:latest"],
                &["warn-version"],
            );
        }
    }
}
