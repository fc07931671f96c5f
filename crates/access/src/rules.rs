//! [`UserRules`]: the permissions of a user in a namespace, as in a SelfSubjectRulesReview
//! (`authorizer.RuleResolver`).

use std::borrow::Cow;

use serde::Serialize;

/// A string in a rule.
type Text = Cow<'static, str>;

/// The rules of a user in a namespace, with the JSON form of `authorization.k8s.io/v1
/// SubjectRulesReviewStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserRules {
    /// Rules for resources.
    pub resource_rules: Vec<ResourceRule>,
    /// Rules for other paths.
    pub non_resource_rules: Vec<NonResourceRule>,
    /// Whether the user may have more permissions, because an authorizer cannot list its rules.
    pub incomplete: bool,
    /// The reason why rules are missing; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evaluation_error: String,
}

/// Allowed verbs on resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// The verbs; `*` for all.
    pub verbs: Vec<Text>,
    /// The API groups; `*` for all.
    pub api_groups: Vec<Text>,
    /// The resources, with subresources as `pods/log`; `*` for all.
    pub resources: Vec<Text>,
    /// The names of the objects; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<Text>,
}

/// Allowed verbs on non-resource paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NonResourceRule {
    /// The verbs; `*` for all.
    pub verbs: Vec<Text>,
    /// The paths; a trailing `*` matches any suffix.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<Text>,
}

impl UserRules {
    /// The rules of an authorizer that cannot list them.
    pub fn unknown() -> Self {
        UserRules { incomplete: true, ..UserRules::default() }
    }

    /// Adds the rules of another authorizer.
    pub fn extend(&mut self, other: UserRules) {
        self.resource_rules.extend(other.resource_rules);
        self.non_resource_rules.extend(other.non_resource_rules);
        self.incomplete |= other.incomplete;
        if !self.evaluation_error.is_empty() && !other.evaluation_error.is_empty() {
            self.evaluation_error.push_str(", ");
        }
        self.evaluation_error.push_str(&other.evaluation_error);
    }
}

impl ResourceRule {
    /// A rule that allows these verbs on these resources.
    pub fn new(verbs: &[&'static str], api_groups: &[&'static str], resources: &[&'static str]) -> Self {
        let [verbs, api_groups, resources] = [verbs, api_groups, resources].map(texts);
        ResourceRule { verbs, api_groups, resources, resource_names: Vec::new() }
    }
}

impl NonResourceRule {
    /// A rule that allows these verbs on these paths.
    pub fn new(verbs: &[&'static str], paths: &[&'static str]) -> Self {
        NonResourceRule { verbs: texts(verbs), non_resource_urls: texts(paths) }
    }
}

fn texts(texts: &[&'static str]) -> Vec<Text> {
    texts.iter().map(|text| Cow::Borrowed(*text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_rules_serialize_as_subject_rules_review_status() {
        let mut rules = UserRules::default();
        rules.extend(UserRules {
            resource_rules: vec![ResourceRule::new(&["get"], &[""], &["pods", "pods/log"])],
            non_resource_rules: vec![NonResourceRule::new(&["get"], &["/api/*"])],
            ..UserRules::default()
        });
        let resource = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods","pods/log"]}"#;
        let path = r#"{"verbs":["get"],"nonResourceURLs":["/api/*"]}"#;
        let expected = format!(r#"{{"resourceRules":[{resource}],"nonResourceRules":[{path}],"incomplete":false}}"#);
        assert_eq!(serde_json::to_string(&rules).unwrap(), expected);
        rules.extend(UserRules::unknown());
        assert!(rules.incomplete && rules.resource_rules.len() == 1);
    }
}
