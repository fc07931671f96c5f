//! The selectors of access reviews: `spec.resourceAttributes.fieldSelector` and `labelSelector`
//! (`pkg/registry/authorization/util/helpers.go`, `pkg/apis/authorization/validation/validation.go`).

use listwatch_json::Value;
use listwatch_meta::selector::{
    FieldTerm, LabelOperator, LabelRequirement, label_value_problems, qualified_name_problems, validate_label_value,
    validate_qualified_name,
};
use listwatch_meta::{FieldError, FieldSelector, LabelSelector};

/// The path of the attributes in a review.
const ATTRIBUTES: &str = "spec.resourceAttributes";

/// The requirements of the selectors of a review. Invalid requirements are omitted, so that a broader request is
/// authorized.
#[derive(Debug, Default)]
pub(super) struct ReviewSelectors {
    pub(super) fields: Vec<FieldTerm>,
    pub(super) labels: Vec<LabelRequirement>,
    /// The `evaluationError` for the status; empty if all requirements were parsed.
    pub(super) evaluation_error: String,
}

/// A requirement in the review.
struct Requirement<'a> {
    key: &'a str,
    operator: &'a str,
    values: Vec<&'a str>,
}

fn requirements(selector: &Value) -> impl Iterator<Item = Requirement<'_>> {
    selector["requirements"].as_array().into_iter().flatten().map(|requirement| Requirement {
        key: requirement["key"].as_str().unwrap_or_default(),
        operator: requirement["operator"].as_str().unwrap_or_default(),
        values: requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    })
}

/// Returns the text of `rawSelector`; `None` if absent or empty.
fn raw(selector: &Value) -> Option<&str> {
    selector["rawSelector"].as_str().filter(|text| !text.is_empty())
}

impl ReviewSelectors {
    /// Reads the selectors of the resource attributes.
    pub(super) fn of(attributes: Option<&Value>) -> Self {
        let mut selectors = ReviewSelectors::default();
        let Some(attributes) = attributes else { return selectors };
        let (of_fields, of_labels) = (&attributes["fieldSelector"], &attributes["labelSelector"]);
        let mut fields_parsed = true;
        match raw(of_fields) {
            Some(text) => match FieldSelector::parse(text) {
                Ok(selector) => selectors.fields = selector.terms().to_vec(),
                Err(_) => fields_parsed = false,
            },
            None => {
                for requirement in requirements(of_fields) {
                    match field_term(&requirement) {
                        Some(term) => selectors.fields.push(term),
                        None => fields_parsed = false,
                    }
                }
            }
        }
        let mut labels_parsed = true;
        match raw(of_labels) {
            Some(text) => match LabelSelector::parse(text) {
                Ok(selector) => selectors.labels = selector.requirements().to_vec(),
                Err(_) => labels_parsed = false,
            },
            None => {
                for requirement in requirements(of_labels) {
                    match label_requirement(&requirement) {
                        Some(requirement) => selectors.labels.push(requirement),
                        None => labels_parsed = false,
                    }
                }
            }
        }
        let errors = [
            ("fieldSelector", fields_parsed, selectors.fields.is_empty()),
            ("labelSelector", labels_parsed, selectors.labels.is_empty()),
        ];
        let errors = errors.into_iter().filter(|(_, parsed, _)| !parsed).map(|(name, _, is_empty)| {
            let part = if is_empty { "" } else { "partially " };
            format!("{ATTRIBUTES}.{name} {part}ignored due to parse error")
        });
        selectors.evaluation_error = errors.collect::<Vec<_>>().join("; ");
        selectors
    }
}

/// Converts a field requirement with one value. Returns `None` for other requirements, which upstream does not support
/// either.
fn field_term(requirement: &Requirement<'_>) -> Option<FieldTerm> {
    let ("In" | "NotIn", [value]) = (requirement.operator, requirement.values.as_slice()) else { return None };
    let negated = requirement.operator == "NotIn";
    Some(FieldTerm { field: requirement.key.to_owned(), value: (*value).to_owned(), negated })
}

fn label_requirement(requirement: &Requirement<'_>) -> Option<LabelRequirement> {
    let values: Vec<String> = requirement.values.iter().map(|value| (*value).to_owned()).collect();
    let set = || values.iter().cloned().collect();
    let operator = match (requirement.operator, requirement.values.is_empty()) {
        ("In", false) => LabelOperator::In(set()),
        ("NotIn", false) => LabelOperator::NotIn(set()),
        ("Exists", true) => LabelOperator::Exists,
        ("DoesNotExist", true) => LabelOperator::DoesNotExist,
        _ => return None,
    };
    let is_valid = validate_qualified_name(requirement.key).is_ok()
        && requirement.values.iter().all(|value| validate_label_value(value).is_ok());
    // Authorizers see the values in the order of the review.
    is_valid.then(|| LabelRequirement::new(requirement.key, operator).with_listed_values(values))
}

/// Validates the selectors of the resource attributes.
pub(super) fn validate(attributes: Option<&Value>, errors: &mut Vec<FieldError>) {
    for name in ["fieldSelector", "labelSelector"] {
        let Some(selector) = attributes.map(|attributes| &attributes[name]).filter(|selector| !selector.is_null())
        else {
            continue;
        };
        let path = format!("{ATTRIBUTES}.{name}");
        let has_requirements = requirements(selector).next().is_some();
        match (raw(selector), has_requirements) {
            (Some(text), true) => {
                let why = "may not specified at the same time as requirements";
                errors.push(FieldError::invalid(format!("{path}.rawSelector"), Value::from(text), why));
            }
            (None, false) => {
                let why = format_args!("when {path} is specified, requirements or rawSelector is required");
                errors.push(FieldError::required(format!("{path}.requirements"), why));
            }
            _ => {}
        }
        for (at, requirement) in requirements(selector).enumerate() {
            validate_requirement(&format!("{path}.requirements[{at}]"), &requirement, name == "labelSelector", errors);
        }
    }
}

fn validate_requirement(path: &str, requirement: &Requirement<'_>, of_labels: bool, errors: &mut Vec<FieldError>) {
    let Requirement { key, operator, values } = requirement;
    if !of_labels && key.is_empty() {
        errors.push(FieldError::required(format!("{path}.key"), "must be specified"));
    }
    match (*operator, values.is_empty()) {
        ("In" | "NotIn", true) => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(format!("{path}.values"), why));
        }
        ("Exists" | "DoesNotExist", false) => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(format!("{path}.values"), why));
        }
        // Other operators of newer clients are ignored.
        _ => {}
    }
    if of_labels {
        for why in qualified_name_problems(key) {
            errors.push(FieldError::invalid(format!("{path}.key"), Value::from(*key), why));
        }
        for (at, value) in values.iter().enumerate() {
            for why in label_value_problems(value) {
                errors.push(FieldError::invalid(format!("{path}.values[{at}]"), Value::from(*value), why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn unparsable_selectors_of_a_review_are_ignored_with_an_evaluation_error() {
        let fields = "spec.resourceAttributes.fieldSelector";
        let labels = "spec.resourceAttributes.labelSelector";
        let one = |operator: &str, values: Value| json!([{"key": "k", "operator": operator, "values": values}]);
        for (attributes, expected_fields, expected_labels, error) in [
            (json!({}), "", "", String::new()),
            (json!({"fieldSelector": {"rawSelector": "a=b,c!=d"}}), "a=b,c!=d", "", String::new()),
            (json!({"fieldSelector": {"rawSelector": "a"}}), "", "", format!("{fields} ignored due to parse error")),
            (json!({"fieldSelector": {"requirements": one("In", json!(["v"]))}}), "k=v", "", String::new()),
            (json!({"fieldSelector": {"requirements": one("NotIn", json!(["v"]))}}), "k!=v", "", String::new()),
            (
                json!({"fieldSelector": {"requirements": [
                    {"key": "k", "operator": "In", "values": ["v"]},
                    {"key": "l", "operator": "Exists"},
                ]}}),
                "k=v",
                "",
                format!("{fields} partially ignored due to parse error"),
            ),
            (json!({"labelSelector": {"rawSelector": "a in (b,c),!d"}}), "", "a in (b,c),!d", String::new()),
            (json!({"labelSelector": {"requirements": one("In", json!(["v", "w"]))}}), "", "k in (v,w)", String::new()),
            (json!({"labelSelector": {"requirements": one("DoesNotExist", json!([]))}}), "", "!k", String::new()),
            (
                json!({"labelSelector": {"requirements": one("New", json!([]))}, "fieldSelector": {"rawSelector": "a"}}),
                "",
                "",
                format!("{fields} ignored due to parse error; {labels} ignored due to parse error"),
            ),
        ] {
            let found = ReviewSelectors::of(Some(&attributes));
            let texts = (
                FieldSelector::new(found.fields).to_string(),
                LabelSelector::new(found.labels).to_string(),
                found.evaluation_error,
            );
            assert_eq!(texts, (expected_fields.to_owned(), expected_labels.to_owned(), error), "{attributes}");
        }
    }

    #[test]
    fn listed_requirements_keep_their_order_and_raw_selectors_are_sorted() {
        let requirement =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let listed = json!({
            "fieldSelector": {"requirements": [
                requirement("spec.nodeName", "In", &["n"]),
                requirement("metadata.name", "NotIn", &["b"]),
                requirement("metadata.name", "NotIn", &["a"]),
            ]},
            "labelSelector": {"requirements": [
                requirement("test", "In", &["b", "a"]),
                requirement("allow", "In", &["true"]),
            ]},
        });
        let raw = json!({
            "fieldSelector": {"rawSelector": "spec.nodeName=n,metadata.name!=b,metadata.name!=a"},
            "labelSelector": {"rawSelector": "test in (b,a),allow=true"},
        });
        for (attributes, fields, labels) in [
            (listed, "spec.nodeName=n,metadata.name!=b,metadata.name!=a", "test=[b a] allow=[true]"),
            (raw, "metadata.name!=a,metadata.name!=b,spec.nodeName=n", "allow=[true] test=[a b]"),
        ] {
            let found = ReviewSelectors::of(Some(&attributes));
            assert_eq!(FieldSelector::new(found.fields).to_string(), fields, "{attributes}");
            let found: Vec<String> = found
                .labels
                .iter()
                .map(|requirement| format!("{}=[{}]", requirement.key(), requirement.values().join(" ")))
                .collect();
            assert_eq!(found.join(" "), labels, "{attributes}");
        }
    }

    #[test]
    fn review_with_invalid_selectors_is_rejected_with_their_field_paths() {
        for (attributes, expected) in [
            (json!({"fieldSelector": null}), &[][..]),
            (json!({"fieldSelector": {"rawSelector": "a=b"}}), &[]),
            (json!({"fieldSelector": {}}), &["spec.resourceAttributes.fieldSelector.requirements"]),
            (
                json!({"labelSelector": {"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists"}]}}),
                &["spec.resourceAttributes.labelSelector.rawSelector"],
            ),
            (
                json!({"fieldSelector": {"requirements": [{"operator": "In"}]}}),
                &[
                    "spec.resourceAttributes.fieldSelector.requirements[0].key",
                    "spec.resourceAttributes.fieldSelector.requirements[0].values",
                ],
            ),
            (
                json!({"labelSelector": {"requirements": [{"key": "a", "operator": "Exists", "values": ["-"]}]}}),
                &[
                    "spec.resourceAttributes.labelSelector.requirements[0].values",
                    "spec.resourceAttributes.labelSelector.requirements[0].values[0]",
                ],
            ),
        ] {
            let mut errors = Vec::new();
            validate(Some(&attributes), &mut errors);
            let found: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, expected, "{attributes}");
        }
    }
}
