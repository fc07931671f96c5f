//! Normalizes objects of built-in kinds as Go's decoder does, in one walk ([`normalize`]). Unknown fields are removed,
//! quantities, times and base64 are canonicalized, and fields that Go would omit are removed.
//!
//! The types come from the protobuf table ([`listwatch_k8s_types`]), so the walk keeps exactly the fields that protobuf
//! can represent. Error messages are those of `encoding/json`, and for unknown fields those of the strict decoder
//! `sigs.k8s.io/json`. Named Go types such as `v1.RestartPolicy` appear as their underlying types.

use listwatch_json::{Map, Value};
use listwatch_k8s_types::{Field, Id, Message, Omit, Shape, Type};
use listwatch_meta::go::{self, TypeErrorStyle};
use listwatch_meta::status::{FIELD_ERROR_BYTES_MAX, cut};
use listwatch_registry::DEFINITIONS_GROUP;
use listwatch_validation::base64::normalize_base64;
use listwatch_validation::quantities;
use listwatch_validation::times::{Precision, normalize_time};
use serde_json::Number;

use super::expected::Expected;
use super::field_path::{FieldPath, Step};

/// The maximum number of unknown fields in errors, as in `sigs.k8s.io/json`. Further unknown fields are also removed.
const NAMED_MAX: usize = 100;

/// Normalizes a decoded body for its type, and returns the paths of the unknown fields that were removed. `metadata` is
/// checked elsewhere. In CustomResourceDefinitions, only unknown fields are removed, whole floats become integers, and
/// times and base64 are canonicalized.
///
/// # Errors
/// The text of Go's decoder for the first value of a wrong type. Unknown fields are also removed in that case.
pub(super) fn normalize(expected: Expected<'_>, id: Id, object: &mut Map) -> Result<Vec<String>, String> {
    let mut walk = Walk {
        version: expected.version,
        error_style: expected.error_style,
        fits: expected.group != DEFINITIONS_GROUP,
        is_definition: expected.group == DEFINITIONS_GROUP,
        unknown: Vec::new(),
        verdict: Ok(()),
    };
    let mut next = 0;
    object.retain(|name, value| name == "metadata" || walk.member(id, name, value, None, &mut next));
    walk.verdict.map(|()| walk.unknown)
}

/// Whether an object has unknown fields, which [`normalize`] would remove.
pub(super) fn has_unknown(object: &Map, id: Id) -> bool {
    object.iter().any(|(name, value)| name != "metadata" && is_unknown(id, name, value))
}

fn is_unknown(id: Id, name: &str, value: &Value) -> bool {
    let Some(field) = id.message().field(name) else { return !is_type_meta(id, name) };
    let Some(inner) = inner(field.of()) else { return false };
    let below = |value: &Value| match value {
        Value::Object(members) => members.iter().any(|(name, value)| is_unknown(inner, name, value)),
        _ => false,
    };
    match (field.shape(), value) {
        (Shape::Map, Value::Object(members)) => members.values().any(below),
        (_, Value::Array(items)) => items.iter().any(below),
        (_, value) => below(value),
    }
}

/// Whether the field is `apiVersion` or `kind`, and the type has type meta.
fn is_type_meta(id: Id, name: &str) -> bool {
    matches!(name, "apiVersion" | "kind") && id.message().is_object()
}

/// Returns the message type of a value, of its items or of its members, if there is one.
fn inner(of: Type) -> Option<Id> {
    match of {
        Type::Message(of) | Type::PropsOrArray(of) | Type::PropsOrBool(of) | Type::PropsOrStrings(of) => Some(of),
        _ => None,
    }
}

/// The state of a walk through an object.
struct Walk<'a> {
    version: &'a str,
    error_style: TypeErrorStyle,
    /// Whether values are normalized. False after the first type error, and in types where only unknown fields are
    /// removed.
    fits: bool,
    /// Whether the object is a CustomResourceDefinition. Its default values are copied into custom resources.
    is_definition: bool,
    unknown: Vec<String>,
    verdict: Result<(), String>,
}

impl Walk<'_> {
    /// Visits a member of an object. `next` is the field that a search by name tries first. Returns false if the member
    /// must be removed.
    fn member(
        &mut self,
        id: Id,
        name: &str,
        value: &mut Value,
        parent: Option<&FieldPath<'_>>,
        next: &mut usize,
    ) -> bool {
        let message = id.message();
        let path = FieldPath { parent, step: Step::Field(name) };
        let Some(field) = message.field_in_order(name, next) else {
            let known = is_type_meta(id, name);
            if !known && self.unknown.len() < NAMED_MAX {
                self.unknown.push(cut(path, FIELD_ERROR_BYTES_MAX));
            }
            return known;
        };
        self.field(message, field, value, &path)
    }

    fn message(&mut self, id: Id, members: &mut Map, path: &FieldPath<'_>) {
        let mut next = 0;
        members.retain(|name, value| self.member(id, name, value, Some(path), &mut next));
    }

    /// Normalizes a field. Returns false if Go would omit the field.
    fn field(&mut self, of: &'static Message, field: &'static Field, value: &mut Value, path: &FieldPath<'_>) -> bool {
        let what = field.of();
        let left_out = match (field.shape(), &mut *value) {
            (_, Value::Null) => false,
            (Shape::Repeated, Value::Array(items)) => {
                for (at, item) in items.iter_mut().enumerate() {
                    if self.fits && item.is_null() {
                        *item = nothing(what);
                    }
                    self.value(of, what, item, &FieldPath { parent: Some(path), step: Step::Item(at) });
                }
                items.is_empty()
            }
            (Shape::Map, Value::Object(members)) => {
                let has_amounts = what == Type::Quantity && has_resource_lists(of);
                for (name, member) in members.iter_mut() {
                    if self.fits && member.is_null() {
                        *member = nothing(what);
                    }
                    if has_amounts {
                        self.amount(member);
                        continue;
                    }
                    self.value(of, what, member, &FieldPath { parent: Some(path), step: Step::Member(name) });
                }
                members.is_empty()
            }
            (shape @ (Shape::Repeated | Shape::Map), other) => {
                let begin = if shape == Shape::Map { "map[string]" } else { "[]" };
                let wanted = self.fits.then(|| format!("{begin}{}", self.name_of(what)));
                self.cannot(of, other, wanted, path);
                self.look_below(what, other, path);
                false
            }
            (Shape::One | Shape::Pointer | Shape::Inline, value) => {
                self.value(of, what, value, path);
                if let Value::Array(_) = value {
                    self.look_below(what, value, path);
                }
                field.shape() == Shape::One && is_zero(what, value)
            }
        };
        !(left_out && self.fits && field.omit() != Omit::Never && !is_kept_if_empty(of, field))
    }

    fn value(&mut self, of: &'static Message, what: Type, value: &mut Value, path: &FieldPath<'_>) {
        if self.is_definition {
            self.value_of_definition(what, value);
        }
        match (what, &mut *value) {
            (Type::Message(id), Value::Object(members)) => return self.message(id, members, path),
            (Type::PropsOrBool(_) | Type::PropsOrArray(_) | Type::PropsOrStrings(_), Value::Object(_)) => {
                return self.look_below(what, value, path);
            }
            _ if !self.fits => return,
            _ => {}
        }
        let wanted = match (what, &*value) {
            (_, Value::Null) => return,
            (Type::Quantity, _) => {
                if let Err(why) = quantities::canonicalize(value) {
                    self.refuse(why);
                }
                return;
            }
            (Type::Time | Type::MicroTime, Value::String(_)) => {
                let precision = if what == Type::Time { Precision::Seconds } else { Precision::Micros };
                if let Err(why) = normalize_time(value, precision) {
                    self.refuse(why);
                }
                return;
            }
            (Type::Bytes, Value::String(_)) => {
                if let Err(why) = normalize_base64(Some(value)) {
                    let is_converter = self.error_style == TypeErrorStyle::Converter;
                    self.refuse(if is_converter { format!("error decoding from json: {why}") } else { why });
                }
                return;
            }
            (Type::String, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::Double, Value::Number(_))
            | (Type::IntOrString, Value::String(_))
            | (Type::Raw | Type::Strings | Type::PropsOrBool(_) | Type::PropsOrArray(_) | Type::PropsOrStrings(_), _) =>
            {
                return;
            }
            (Type::Int32 | Type::Int64, Value::Number(number)) => {
                let whole = number.as_i64().or_else(|| self.converted(number));
                if whole.is_some_and(|whole| what == Type::Int64 || i32::try_from(whole).is_ok()) {
                    if let (Some(whole), true) = (whole, number.is_f64()) {
                        *value = Value::from(whole);
                    }
                    return;
                }
                return self.cannot(of, value, Some(self.name_of(what)), path);
            }
            (Type::IntOrString, Value::Number(number))
                if number.as_i64().is_some_and(|whole| i32::try_from(whole).is_ok()) =>
            {
                return;
            }
            (Type::Time | Type::MicroTime, _) if self.error_style == TypeErrorStyle::Decoder => "string".to_owned(),
            (Type::IntOrString, _) if self.error_style == TypeErrorStyle::Decoder => "int32".to_owned(),
            _ => self.name_of(what),
        };
        self.cannot(of, value, Some(wanted), path);
    }

    /// Normalizes a value of a CustomResourceDefinition.
    fn value_of_definition(&mut self, what: Type, value: &mut Value) {
        let result = match what {
            Type::Raw | Type::Double => {
                go::round_trip_numbers(value);
                Ok(())
            }
            Type::Bytes => normalize_base64(Some(value)),
            Type::Time => normalize_time(value, Precision::Seconds),
            _ => Ok(()),
        };
        if self.verdict.is_ok() {
            self.verdict = result;
        }
    }

    /// Normalizes a quantity in a list of resources.
    fn amount(&mut self, value: &mut Value) {
        if self.fits
            && let Err(why) = quantities::canonicalize_in_resource_list(value)
        {
            self.refuse(why);
        }
    }

    /// Converts a float without fraction into an integer, as the converter of strategic merge patches does.
    fn converted(&self, number: &Number) -> Option<i64> {
        let float =
            number.as_f64().filter(|float| self.error_style == TypeErrorStyle::Converter && float.fract() == 0.0)?;
        format!("{float:.0}").parse().ok()
    }

    /// Removes unknown fields from a value that is not normalized: an object or a list of objects.
    fn look_below(&mut self, what: Type, value: &mut Value, path: &FieldPath<'_>) {
        let Some(id) = inner(what) else { return };
        let fits = std::mem::replace(&mut self.fits, false);
        match value {
            Value::Object(members) => self.message(id, members, path),
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    if let Value::Object(members) = item {
                        self.message(id, members, &FieldPath { parent: Some(path), step: Step::Item(at) });
                    }
                }
            }
            _ => {}
        }
        self.fits = fits;
    }

    /// Records the first type error. After the first error, no further value is normalized.
    fn refuse(&mut self, why: String) {
        if self.fits {
            self.verdict = Err(why);
            self.fits = false;
        }
    }

    /// Records the type error that `value` does not have the type `wanted`. See [`Self::refuse`].
    fn cannot(&mut self, of: &'static Message, value: &Value, wanted: Option<String>, path: &FieldPath<'_>) {
        if let (true, Some(wanted)) = (self.fits, wanted) {
            if self.error_style == TypeErrorStyle::Converter {
                return self.refuse(go::cannot_convert(value, &wanted));
            }
            let found = match value {
                Value::Number(number) if matches!(&*wanted, "int32" | "int64") => format!("number {number}"),
                other => go::json_kind(other).to_owned(),
            };
            let (holder, path) = (of.name(), path.typed_path());
            self.refuse(format!(
                "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {wanted}"
            ));
        }
    }

    /// Returns the name of a type in Go's error messages.
    fn name_of(&self, what: Type) -> String {
        match what {
            Type::String => "string".to_owned(),
            Type::Bool => "bool".to_owned(),
            Type::Int32 => "int32".to_owned(),
            Type::Int64 => "int64".to_owned(),
            Type::Double => "float64".to_owned(),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Message(id) => format!("{}.{}", self.version, id.message().name()),
            Type::Time => "v1.Time".to_owned(),
            Type::MicroTime => "v1.MicroTime".to_owned(),
            Type::Quantity => "resource.Quantity".to_owned(),
            Type::IntOrString => "intstr.IntOrString".to_owned(),
            Type::Strings => "[]string".to_owned(),
            Type::Raw | Type::PropsOrBool(_) | Type::PropsOrArray(_) | Type::PropsOrStrings(_) => {
                "runtime.RawExtension".to_owned()
            }
        }
    }
}

/// Whether maps of quantities in a message are lists of resources (`v1.ResourceList`), which Go's defaults round up.
fn has_resource_lists(of: &Message) -> bool {
    of.package() == "io.k8s.api.core.v1" && of.name() != "NodeAllocatableResourceClaimStatus"
}

/// Returns the zero value that Go decodes from a null member of a map or item of a list.
fn nothing(of: Type) -> Value {
    match of {
        Type::String | Type::Bytes => Value::from(""),
        Type::Quantity => Value::from("0"),
        Type::Bool => Value::from(false),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => Value::from(0),
        Type::Message(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Whether Go's defaults distinguish an empty list from an absent one: an HPA behavior without policies is invalid.
fn is_kept_if_empty(of: &Message, field: &Field) -> bool {
    field.shape() == Shape::Repeated && of.name() == "HPAScalingRules"
}

/// Whether the value is Go's zero value of the type.
fn is_zero(of: Type, value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty() && matches!(of, Type::String | Type::Bytes),
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use listwatch_k8s_types::message_of;

    use super::*;

    fn of_kind(api_version: &'static str, kind: &'static str) -> Expected<'static> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Expected::builtin(group, version, kind)
    }

    fn fitted(api_version: &str, kind: &str, object: Value) -> Result<Value, String> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let expected = Expected::builtin(group, version, kind);
        let id = message_of(api_version, kind).expect("a built-in kind");
        let Value::Object(mut object) = object else { panic!("not an object") };
        assert_eq!(normalize(expected, id, &mut object)?, [""; 0]);
        Ok(Value::Object(object))
    }

    fn check(api_version: &str, kind: &str, object: Value, expected: Value) {
        assert_eq!(fitted(api_version, kind, object), Ok(expected));
    }

    #[test]
    fn normalize_removes_the_zero_values_that_go_omits() {
        check(
            "v1",
            "ConfigMap",
            json!({"kind": "ConfigMap", "metadata": {"odd": 1}, "data": {"a": ""}, "binaryData": {}}),
            json!({"kind": "ConfigMap", "metadata": {"odd": 1}, "data": {"a": ""}}),
        );
        check(
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 0, "paused": false, "minReadySeconds": 0, "template": {"spec": {
                "hostname": "", "hostNetwork": false, "containers": [{"name": "c", "args": [],
                    "livenessProbe": {"httpGet": {"port": 80}}, "resources": {"limits": {"cpu": "1000m"}}}]}}}}),
            json!({"spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "c",
                "livenessProbe": {"httpGet": {"port": 80}}, "resources": {"limits": {"cpu": "1"}}}]}}}}),
        );
        let nulls = json!({"data": {"a": null}, "immutable": false});
        check("v1", "ConfigMap", nulls, json!({"data": {"a": ""}, "immutable": false}));
        let quota = json!({"spec": {"hard": {"pods": null}}});
        check("v1", "ResourceQuota", quota, json!({"spec": {"hard": {"pods": "0"}}}));
        let claims = json!({"spec": {"volumeClaimTemplates": [{"kind": "PersistentVolumeClaim", "apiVersion": "v1"}]}});
        check("apps/v1", "StatefulSet", claims.clone(), claims);
        let data = json!({"data": {"a": [], "b": null, "c": {"d": ""}}, "revision": 1});
        check("apps/v1", "ControllerRevision", data.clone(), data);
    }

    #[test]
    fn resource_lists_are_rounded_up_to_milli() {
        let resources = |cpu: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}});
        check("v1", "Pod", resources("500u"), resources("1m"));
        let quota = |cpu: &str| json!({"spec": {"hard": {"cpu": cpu}}});
        check("v1", "ResourceQuota", quota("1.0001"), quota("1001m"));
        // Upstream does not round these.
        for (api_version, kind, object) in [
            ("node.k8s.io/v1", "RuntimeClass", json!({"overhead": {"podFixed": {"cpu": "500u"}}})),
            ("v1", "Pod", json!({"spec": {"volumes": [{"emptyDir": {"sizeLimit": "500u"}}]}})),
            (
                "v1",
                "Pod",
                json!({"status": {"nodeAllocatableResourceClaimStatuses": [{"resources": {"cpu": "500u"}}]}}),
            ),
        ] {
            check(api_version, kind, object.clone(), object);
        }
    }

    #[test]
    fn null_in_a_map_of_bytes_becomes_empty() {
        check("v1", "Secret", json!({"data": {"a": null}}), json!({"data": {"a": ""}}));
        check("v1", "ConfigMap", json!({"binaryData": {"a": null}}), json!({"binaryData": {"a": ""}}));
    }

    #[test]
    fn times_are_normalized_as_in_go() {
        let lease = |renew: Value| json!({"spec": {"renewTime": renew}});
        let written = lease(json!("2020-01-01T00:00:00.123456+02:00"));
        check("coordination.k8s.io/v1", "Lease", written, lease(json!("2019-12-31T22:00:00.123456Z")));
        let taint = |time: &str| json!({"spec": {"taints": [{"key": "a", "timeAdded": time}]}});
        check("v1", "Node", taint("2020-01-01T00:00:00.5+01:00"), taint("2019-12-31T23:00:00Z"));
        let why = "parsing time \"2020-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\"";
        let written = lease(json!("2020-01-01T00:00:00Z"));
        assert_eq!(fitted("coordination.k8s.io/v1", "Lease", written), Err(why.to_owned()));
        assert!(fitted("v1", "Node", taint("yesterday")).is_err());
    }

    #[test]
    fn bytes_must_be_base64_and_are_normalized() {
        let webhook = |bundle: &str| json!({"webhooks": [{"clientConfig": {"caBundle": bundle}}]});
        let of =
            |bundle: &str| fitted("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", webhook(bundle));
        assert_eq!(of("eHh4\neHh4\n"), Ok(webhook("eHh4eHh4")));
        assert_eq!(of("${CA_BUNDLE}"), Err("illegal base64 data at input byte 0".to_owned()));
        let Value::Object(mut secret) = json!({"data": {"a": "!"}}) else { panic!("not an object") };
        let expected = Expected { error_style: TypeErrorStyle::Converter, ..of_kind("v1", "Secret") };
        let id = message_of("v1", "Secret").expect("a built-in kind");
        let why = "error decoding from json: illegal base64 data at input byte 0";
        assert_eq!(normalize(expected, id, &mut secret), Err(why.to_owned()));
    }

    #[test]
    fn empty_scaling_policies_are_not_removed() {
        let hpa = |policies: Value| json!({"spec": {"behavior": {"scaleUp": {"policies": policies}}}});
        check("autoscaling/v2", "HorizontalPodAutoscaler", hpa(json!([])), hpa(json!([])));
        let metrics = json!({"spec": {"metrics": []}});
        check("autoscaling/v2", "HorizontalPodAutoscaler", metrics, json!({"spec": {}}));
    }

    #[test]
    fn null_in_a_list_becomes_the_zero_value() {
        let pod = |args: Value| json!({"spec": {"containers": [{"name": "c", "args": args}]}});
        check("v1", "Pod", pod(json!([null, "x"])), pod(json!(["", "x"])));
        check("v1", "Pod", json!({"spec": {"containers": [null]}}), json!({"spec": {"containers": [{}]}}));
        let groups = |groups: Value| json!({"spec": {"securityContext": {"supplementalGroups": groups}}});
        check("v1", "Pod", groups(json!([null, 1])), groups(json!([0, 1])));
        let data = json!({"data": [null]});
        check("apps/v1", "ControllerRevision", data.clone(), data);
    }

    #[test]
    fn bytes_and_times_of_a_definition_are_normalized() {
        let definition = |bundle: &str, time: &str| {
            json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}},
                "status": {"conditions": [{"type": "Established", "lastTransitionTime": time}]}})
        };
        let of = |object: Value| fitted("apiextensions.k8s.io/v1", "CustomResourceDefinition", object);
        let written = definition("eHh4\neHh4", "2020-01-01T01:00:00+01:00");
        assert_eq!(of(written), Ok(definition("eHh4eHh4", "2020-01-01T00:00:00Z")));
        let illegal = Err("illegal base64 data at input byte 0".to_owned());
        assert_eq!(of(definition("${CA_BUNDLE}", "2020-01-01T00:00:00Z")), illegal);
        assert!(of(definition("eHh4", "yesterday")).is_err());
    }

    #[test]
    fn wrong_type_is_reported_with_gos_error_text() {
        for (api_version, kind, object, expected) in [
            ("v1", "ConfigMap", json!({"data": {"a": 5}}), "number into Go struct field ConfigMap.data of type string"),
            (
                "v1",
                "ConfigMap",
                json!({"data": 5}),
                "number into Go struct field ConfigMap.data of type map[string]string",
            ),
            (
                "apps/v1",
                "Deployment",
                json!({"spec": {"replicas": "3"}}),
                "string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                "apps/v1",
                "Deployment",
                json!({"spec": {"replicas": 1.5}}),
                "number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                "apps/v1",
                "Deployment",
                json!({"spec": {"template": {"spec": {"containers": {}}}}}),
                "object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                "v1",
                "Service",
                json!({"spec": {"ports": [{"targetPort": true}]}}),
                "bool into Go struct field ServicePort.spec.ports.targetPort of type int32",
            ),
        ] {
            let expected = format!("json: cannot unmarshal {expected}");
            assert_eq!(fitted(api_version, kind, object), Err(expected));
        }
        let (expected, id) =
            (of_kind("apps/v1", "Deployment"), message_of("apps/v1", "Deployment").expect("a built-in kind"));
        let expected = Expected { error_style: TypeErrorStyle::Converter, ..expected };
        for (spec, outcome) in [
            (json!({"replicas": "3"}), Err("unrecognized type: int32")),
            (json!({"replicas": 1.5}), Err("cannot convert float64 to int32")),
            (json!({"replicas": 2.0}), Ok(json!({"replicas": 2}))),
            (json!({"selector": []}), Err("cannot restore struct from: slice")),
            (json!({"selector": {"matchLabels": "a"}}), Err("cannot restore map from string")),
            (json!({"template": {"spec": {"containers": {}}}}), Err("cannot restore slice from map")),
            (json!({"template": {"spec": {"containers": [{"name": 5}]}}}), Err("cannot convert int64 to string")),
        ] {
            let Value::Object(mut object) = json!({"spec": spec}) else { panic!("not an object") };
            let verdict = normalize(expected, id, &mut object).map(|_| object["spec"].take());
            assert_eq!(verdict, outcome.map_err(str::to_owned), "the converter and {spec}");
        }
        let amount = json!({"spec": {"hard": {"pods": "many"}}});
        assert!(fitted("v1", "ResourceQuota", amount).unwrap_err().starts_with("quantities must match"));
    }

    #[test]
    fn unknown_fields_are_removed_but_not_reported_after_a_type_error() {
        let id = message_of("apps/v1", "Deployment").expect("a built-in kind");
        let expected = Expected::builtin("apps", "v1", "Deployment");
        let Value::Object(mut object) = json!({"spec": {"replicas": "3", "paused": false, "odd": 1,
            "selector": [{"odd": 1}], "template": {"spec": {"containers": {"odd": 1}, "odd": 2}}}})
        else {
            panic!("not an object")
        };
        let wrong = "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32";
        assert_eq!(normalize(expected, id, &mut object), Err(wrong.to_owned()), "the first that does not fit is told");
        let left = json!({"spec": {"replicas": "3", "paused": false,
            "selector": [{}], "template": {"spec": {"containers": {}}}}});
        assert_eq!(Value::Object(object), left, "after that, fields only go");
    }

    fn check_fields(api_version: &str, kind: &str, object: Value, expected: &[&str], left: Option<Value>) {
        let id = message_of(api_version, kind).expect("a built-in kind");
        let left = left.unwrap_or_else(|| object.clone());
        let Value::Object(mut object) = object else { panic!("no object") };
        assert_eq!(has_unknown(&object, id), !expected.is_empty(), "{object:?}");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let expected_kind = Expected::builtin(group, version, kind);
        assert_eq!(
            normalize(expected_kind, id, &mut object),
            Ok(expected.iter().map(ToString::to_string).collect()),
            "{kind}"
        );
        assert_eq!(Value::Object(object), left, "{kind}");
    }

    #[test]
    fn normalize_removes_unknown_fields_and_returns_their_paths() {
        check_fields(
            "v1",
            "ConfigMap",
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"odd": 1}, "datum": {}, "data": {"any": "x"}}),
            &["datum"],
            Some(json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"odd": 1}, "data": {"any": "x"}})),
        );
        check_fields(
            "apps/v1",
            "Deployment",
            json!({"spec": {"replica": 1, "template": {"kind": "x", "spec": {"containers": [
                {"name": "a"}, {"name": "b", "imagine": "x", "ports": [{"port": 1, "containerPort": 2}]}]}}}}),
            &[
                "spec.replica",
                "spec.template.kind",
                "spec.template.spec.containers[1].imagine",
                "spec.template.spec.containers[1].ports[0].port",
            ],
            Some(json!({"spec": {"template": {"spec": {"containers": [
                {"name": "a"}, {"name": "b", "ports": [{"containerPort": 2}]}]}}}})),
        );
    }

    #[test]
    fn normalize_keeps_untyped_and_embedded_objects() {
        let whole = |api_version: &str, kind: &str, object: Value| check_fields(api_version, kind, object, &[], None);
        whole(
            "v1",
            "Pod",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}],
            "ephemeralContainers": [{"name": "e", "image": "i", "targetContainerName": "t"}]}}),
        );
        whole("v1", "Secret", json!({"stringData": {"a": "b"}, "data": {"x.y": "eA=="}, "type": "any"}));
        whole("apps/v1", "ControllerRevision", json!({"data": {"any": {"thing": []}}, "revision": 1}));
        whole(
            "apps/v1",
            "StatefulSet",
            json!({"spec": {"volumeClaimTemplates": [
            {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "d"}, "spec": {}}]}}),
        );
        let schema = json!({"properties": {"a": {"items": {"type": "string"}, "default": {"any": 1}}},
            "additionalProperties": true, "x-kubernetes-preserve-unknown-fields": true});
        whole(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}}),
        );
    }

    #[test]
    fn normalize_removes_unknown_fields_of_openapi_schemas() {
        let of = |schema: Value| json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}});
        check_fields(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            of(json!({"properties": {"a": {"items": {"typo": "string"}}}})),
            &["spec.versions[0].schema.openAPIV3Schema.properties.a.items.typo"],
            Some(of(json!({"properties": {"a": {"items": {}}}}))),
        );
    }
}
