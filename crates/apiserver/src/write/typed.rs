//! Objects of built-in kinds as Go's decoder leaves them: the fields of their types and no others, amounts
//! in one spelling, and nothing that Go would not write out again. One walk ([`fit`]) does it all.
//!
//! The types are those of the table by which protobuf is read ([`listwatch_k8s_types`]), so this walk keeps
//! exactly what protobuf can represent. Texts are
//! those of `encoding/json` and `sigs.k8s.io/json`, whose strict decoder names unknown fields. Types that
//! Go has a name of its own for (`v1.RestartPolicy`) are called by what they are made of.

use listwatch_k8s_types::{Field, Id, Message, Omit, Shape, Type};
use listwatch_meta::go::{self, Words};
use listwatch_meta::status::{FIELD_ERROR_BYTES_MAX, cut};
use listwatch_validation::quantities;
use serde_json::{Map, Number, Value};

use super::decode::Expected;
use super::place::{Place, Step};

/// So many unknown fields are named; `sigs.k8s.io/json` stops there, too. All of them go.
const NAMED_MAX: usize = 100;

/// Makes a decoded body fit its type and names the fields that the type does not have, which go.
/// `metadata` is checked elsewhere. Definitions of custom resources only lose fields.
///
/// # Errors
/// What Go's decoder says. Unknown fields have gone then, too.
pub(super) fn fit(expected: Expected<'_>, id: Id, object: &mut Map<String, Value>) -> Result<Vec<String>, String> {
    let mut walk = Walk {
        version: expected.version,
        words: expected.words,
        fits: expected.group != "apiextensions.k8s.io",
        unknown: Vec::new(),
        verdict: Ok(()),
    };
    object.retain(|name, value| name == "metadata" || walk.member(id, name, value, None));
    walk.verdict.map(|()| walk.unknown)
}

/// Whether [`fit`] would find unknown fields.
pub(super) fn has_unknown(object: &Map<String, Value>, id: Id) -> bool {
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

/// `apiVersion` and `kind`, of types that have them.
fn is_type_meta(id: Id, name: &str) -> bool {
    matches!(name, "apiVersion" | "kind") && id.message().is_object()
}

/// The type whose fields a value of a type, its items or its members have.
fn inner(of: Type) -> Option<Id> {
    match of {
        Type::Message(of) | Type::PropsOrArray(of) | Type::PropsOrBool(of) | Type::PropsOrStrings(of) => Some(of),
        _ => None,
    }
}

/// A walk through an object.
struct Walk<'a> {
    version: &'a str,
    words: Words,
    /// Values are made to fit; false once one did not, and where only fields are looked at.
    fits: bool,
    unknown: Vec<String>,
    verdict: Result<(), String>,
}

impl Walk<'_> {
    /// Looks at a member of an object of a type. False when it goes.
    fn member(&mut self, id: Id, name: &str, value: &mut Value, parent: Option<&Place<'_>>) -> bool {
        let message = id.message();
        let place = Place { parent, step: Step::Field(name) };
        let Some(field) = message.field(name) else {
            let known = is_type_meta(id, name);
            if !known && self.unknown.len() < NAMED_MAX {
                self.unknown.push(cut(place, FIELD_ERROR_BYTES_MAX));
            }
            return known;
        };
        self.field(message, field, value, &place)
    }

    fn message(&mut self, id: Id, members: &mut Map<String, Value>, place: &Place<'_>) {
        members.retain(|name, value| self.member(id, name, value, Some(place)));
    }

    /// Makes a field fit. False when Go would leave it out.
    fn field(&mut self, of: &'static Message, field: &'static Field, value: &mut Value, place: &Place<'_>) -> bool {
        let what = field.of();
        let left_out = match (field.shape(), &mut *value) {
            (_, Value::Null) => false,
            (Shape::Repeated, Value::Array(items)) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(of, what, item, &Place { parent: Some(place), step: Step::Item(at) });
                }
                items.is_empty()
            }
            (Shape::Map, Value::Object(members)) => {
                for (name, member) in members.iter_mut() {
                    if self.fits && member.is_null() {
                        *member = nothing(what);
                    }
                    self.value(of, what, member, &Place { parent: Some(place), step: Step::Member(name) });
                }
                members.is_empty()
            }
            (shape @ (Shape::Repeated | Shape::Map), other) => {
                let begin = if shape == Shape::Map { "map[string]" } else { "[]" };
                let wanted = self.fits.then(|| format!("{begin}{}", self.name_of(what)));
                self.cannot(of, other, wanted, place);
                self.look_below(what, other, place);
                false
            }
            (Shape::One | Shape::Pointer | Shape::Inline, value) => {
                self.value(of, what, value, place);
                if let Value::Array(_) = value {
                    self.look_below(what, value, place);
                }
                field.shape() == Shape::One && is_zero(what, value)
            }
        };
        !(left_out && self.fits && field.omit() != Omit::Never)
    }

    fn value(&mut self, of: &'static Message, what: Type, value: &mut Value, place: &Place<'_>) {
        match (what, &mut *value) {
            (Type::Message(id), Value::Object(members)) => return self.message(id, members, place),
            (Type::PropsOrBool(_) | Type::PropsOrArray(_) | Type::PropsOrStrings(_), Value::Object(_)) => {
                return self.look_below(what, value, place);
            }
            _ if !self.fits => return,
            _ => {}
        }
        let wanted = match (what, &*value) {
            (_, Value::Null) => return,
            (Type::Quantity, _) => {
                if let Err(why) = quantities::spell(value) {
                    self.refuse(why);
                }
                return;
            }
            (Type::String | Type::Bytes, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::Double, Value::Number(_))
            | (Type::Time | Type::MicroTime | Type::IntOrString, Value::String(_))
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
                return self.cannot(of, value, Some(self.name_of(what)), place);
            }
            (Type::IntOrString, Value::Number(number))
                if number.as_i64().is_some_and(|whole| i32::try_from(whole).is_ok()) =>
            {
                return;
            }
            (Type::Time | Type::MicroTime, _) if self.words == Words::Decoder => "string".to_owned(),
            (Type::IntOrString, _) if self.words == Words::Decoder => "int32".to_owned(),
            _ => self.name_of(what),
        };
        self.cannot(of, value, Some(wanted), place);
    }

    /// A number that only looks like a fraction, which the converter takes for what it is.
    fn converted(&self, number: &Number) -> Option<i64> {
        let float = number.as_f64().filter(|float| self.words == Words::Converter && float.fract() == 0.0)?;
        format!("{float:.0}").parse().ok()
    }

    /// Takes unknown fields out of what is not made to fit: of an object, or of the objects of a list.
    fn look_below(&mut self, what: Type, value: &mut Value, place: &Place<'_>) {
        let Some(id) = inner(what) else { return };
        let fits = std::mem::replace(&mut self.fits, false);
        match value {
            Value::Object(members) => self.message(id, members, place),
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    if let Value::Object(members) = item {
                        self.message(id, members, &Place { parent: Some(place), step: Step::Item(at) });
                    }
                }
            }
            _ => {}
        }
        self.fits = fits;
    }

    /// Notes the first thing that does not fit; from then on nothing is made to.
    fn refuse(&mut self, why: String) {
        if self.fits {
            self.verdict = Err(why);
            self.fits = false;
        }
    }

    /// As [`Self::refuse`]: `value` stands where something else is wanted.
    fn cannot(&mut self, of: &'static Message, value: &Value, wanted: Option<String>, place: &Place<'_>) {
        if let (true, Some(wanted)) = (self.fits, wanted) {
            if self.words == Words::Converter {
                return self.refuse(go::cannot_convert(value, &wanted));
            }
            let found = match value {
                Value::Number(number) if matches!(&*wanted, "int32" | "int64") => format!("number {number}"),
                other => go::json_kind(other).to_owned(),
            };
            let (holder, place) = (of.name(), place.of_fields());
            self.refuse(format!(
                "json: cannot unmarshal {found} into Go struct field {holder}.{place} of type {wanted}"
            ));
        }
    }

    /// How Go calls a type.
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

/// What Go makes of a null member of a map.
fn nothing(of: Type) -> Value {
    match of {
        Type::String => Value::from(""),
        Type::Quantity => Value::from("0"),
        Type::Bool => Value::from(false),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => Value::from(0),
        Type::Message(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Is it what Go has where nothing was said?
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
    use listwatch_k8s_types::message_of;
    use serde_json::json;

    use super::*;

    fn of(api_version: &'static str, kind: &'static str) -> Expected<'static> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Expected { group, version, kind, custom: false, form: None, words: Words::Decoder }
    }

    fn fitted(api_version: &str, kind: &str, object: Value) -> Result<Value, String> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let expected = Expected { group, version, kind, custom: false, form: None, words: Words::Decoder };
        let id = message_of(api_version, kind).expect("a built-in kind");
        let Value::Object(mut object) = object else { panic!("not an object") };
        assert_eq!(fit(expected, id, &mut object)?, [""; 0]);
        Ok(Value::Object(object))
    }

    fn check(api_version: &str, kind: &str, object: Value, expected: Value) {
        assert_eq!(fitted(api_version, kind, object), Ok(expected));
    }

    #[test]
    fn only_what_go_would_write_is_kept() {
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
    fn wrong_types_are_told_in_gos_words() {
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
            (of("apps/v1", "Deployment"), message_of("apps/v1", "Deployment").expect("a built-in kind"));
        let expected = Expected { words: Words::Converter, ..expected };
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
            let verdict = fit(expected, id, &mut object).map(|_| object["spec"].take());
            assert_eq!(verdict, outcome.map_err(str::to_owned), "the converter and {spec}");
        }
        let amount = json!({"spec": {"hard": {"pods": "many"}}});
        assert!(fitted("v1", "ResourceQuota", amount).unwrap_err().starts_with("quantities must match"));
    }

    #[test]
    fn what_does_not_fit_is_no_place_for_unknown_fields() {
        let id = message_of("apps/v1", "Deployment").expect("a built-in kind");
        let expected = Expected {
            group: "apps",
            version: "v1",
            kind: "Deployment",
            custom: false,
            form: None,
            words: Words::Decoder,
        };
        let Value::Object(mut object) = json!({"spec": {"replicas": "3", "paused": false, "odd": 1,
            "selector": [{"odd": 1}], "template": {"spec": {"containers": {"odd": 1}, "odd": 2}}}})
        else {
            panic!("not an object")
        };
        let wrong = "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32";
        assert_eq!(fit(expected, id, &mut object), Err(wrong.to_owned()), "the first that does not fit is told");
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
        let of_kind = Expected { group, version, kind, custom: false, form: None, words: Words::Decoder };
        assert_eq!(fit(of_kind, id, &mut object), Ok(expected.iter().map(ToString::to_string).collect()), "{kind}");
        assert_eq!(Value::Object(object), left, "{kind}");
    }

    #[test]
    fn what_a_kind_does_not_have_is_named_and_goes() {
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
    fn what_is_open_or_embedded_stays() {
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
    fn schemas_are_looked_into() {
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
