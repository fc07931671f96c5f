//! [`difference`]: compares two versions of an object field by field, as a pure function.
//!
//! Elements of lists with names (containers, conditions, ports) are paired by name, others by index. A container that
//! is inserted before another one is therefore only one difference.

use serde_json::{Map, Value};

/// The largest number of characters of a value that are printed. Longer values are truncated.
const VALUE_LIMIT: usize = 160;

/// The largest number of lines of a changed text that are printed.
const TEXT_LINES_MAX: usize = 20;

/// Members that name the elements of a list, in order of preference.
const NAMES: [&str; 8] = ["name", "type", "uid", "key", "containerPort", "port", "ip", "topologyKey"];

/// The text that replaces a hidden value.
const HIDDEN: &str = "***";

/// The annotation of `kubectl apply` with the whole applied object. `kubectl diff` hides the annotation of Secrets, too.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The path of the field: `spec.containers[name=app].image`.
    pub(super) path: String,
    /// The kind of the difference, with the values.
    pub(super) how: FieldChange,
}

/// The kind of difference of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldChange {
    /// The field is new, with this value.
    Added(String),
    /// The field was removed and had this value.
    Removed(String),
    /// The old and the new value.
    Changed(String, String),
    /// A text of several lines changed: the number of the first changed line, from 1, the removed lines and the added
    /// lines.
    Text(usize, Vec<String>, Vec<String>),
}

/// The optional parts of a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiffOptions {
    /// Whether `metadata.managedFields` is compared.
    pub(super) managed_fields: bool,
    /// Whether the values of Secrets are printed.
    pub(super) secrets: bool,
}

/// Returns all fields that differ, in the order of the newer version, followed by removed fields. The resource version
/// is omitted, because it always differs.
pub(super) fn difference(old: &Value, new: &Value, shown: DiffOptions) -> Vec<Difference> {
    let mut walk = Walk { shown, secret: !shown.secrets && is_secret(new), found: Vec::new() };
    walk.values(&mut Vec::new(), old, new);
    walk.found
}

fn is_secret(object: &Value) -> bool {
    let member = |name| object.get(name).and_then(Value::as_str).unwrap_or_default();
    is_secret_type(member("apiVersion"), member("kind"))
}

/// Whether objects of this type have values that are hidden.
pub(super) fn is_secret_type(api_version: &str, kind: &str) -> bool {
    api_version == "v1" && kind == "Secret"
}

/// Replaces the values of a Secret by [`HIDDEN`]: the values in `data` and `stringData`, and the annotation with the
/// whole applied object.
pub(super) fn hide_values(secret: &mut Value) {
    for member in ["data", "stringData"] {
        match secret.get_mut(member) {
            Some(Value::Object(values)) => values.values_mut().for_each(|value| *value = HIDDEN.into()),
            None | Some(Value::Null) => {}
            Some(other) => *other = HIDDEN.into(),
        }
    }
    let annotations = secret.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(applied) = annotations.and_then(|annotations| annotations.get_mut(LAST_APPLIED)) {
        *applied = HIDDEN.into();
    }
}

struct Walk {
    shown: DiffOptions,
    secret: bool,
    found: Vec<Difference>,
}

impl Walk {
    fn values(&mut self, path: &mut Vec<String>, old: &Value, new: &Value) {
        if old == new || self.is_hidden(path) {
            return;
        }
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => self.objects(path, old, new),
            (Value::Array(old), Value::Array(new)) => self.lists(path, old, new),
            (Value::String(old), Value::String(new))
                if (old.contains('\n') || new.contains('\n')) && !self.is_secret(path) =>
            {
                self.texts(path, old, new);
            }
            _ => {
                let how = FieldChange::Changed(self.show(path, old), self.show(path, new));
                self.note(path, how);
            }
        }
    }

    fn objects(&mut self, path: &mut Vec<String>, old: &Map<String, Value>, new: &Map<String, Value>) {
        for (name, value) in new {
            path.push(member(name));
            match old.get(name) {
                Some(before) => self.values(path, before, value),
                None => self.leaf(path, value, FieldChange::Added),
            }
            path.pop();
        }
        for (name, value) in old.iter().filter(|(name, _)| !new.contains_key(*name)) {
            path.push(member(name));
            self.leaf(path, value, FieldChange::Removed);
            path.pop();
        }
    }

    fn lists(&mut self, path: &mut Vec<String>, old: &[Value], new: &[Value]) {
        if let Some(name) = NAMES.iter().find(|name| names_all(old, name) && names_all(new, name)) {
            let same = |a: &Value, b: &Value| a[name] == b[name];
            for value in new {
                path.push(format!("[{name}={}]", bare(&value[name])));
                match old.iter().find(|before| same(before, value)) {
                    Some(before) => self.values(path, before, value),
                    None => self.leaf(path, value, FieldChange::Added),
                }
                path.pop();
            }
            for value in old.iter().filter(|before| !new.iter().any(|value| same(before, value))) {
                path.push(format!("[{name}={}]", bare(&value[name])));
                self.leaf(path, value, FieldChange::Removed);
                path.pop();
            }
            return;
        }
        // Equal elements at the beginning and the end are skipped.
        let begin = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let end = old[begin..].iter().rev().zip(new[begin..].iter().rev()).take_while(|(a, b)| a == b).count();
        let (old_middle, new_middle) = (&old[begin..old.len() - end], &new[begin..new.len() - end]);
        for at in 0..old_middle.len().max(new_middle.len()) {
            path.push(format!("[{}]", begin + at));
            match (old_middle.get(at), new_middle.get(at)) {
                (Some(before), Some(value)) => self.values(path, before, value),
                (None, Some(value)) => self.leaf(path, value, FieldChange::Added),
                (Some(before), None) => self.leaf(path, before, FieldChange::Removed),
                (None, None) => {}
            }
            path.pop();
        }
    }

    fn texts(&mut self, path: &[String], old: &str, new: &str) {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
        let begin = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let end = old[begin..].iter().rev().zip(new[begin..].iter().rev()).take_while(|(a, b)| a == b).count();
        let some = |lines: &[&str]| {
            let mut shown: Vec<String> = lines.iter().take(TEXT_LINES_MAX).map(|line| visible(line)).collect();
            if lines.len() > TEXT_LINES_MAX {
                shown.push(format!("… and {} more lines", lines.len() - TEXT_LINES_MAX));
            }
            shown
        };
        let (gone, come) = (some(&old[begin..old.len() - end]), some(&new[begin..new.len() - end]));
        self.note(path, FieldChange::Text(begin + 1, gone, come));
    }

    /// Records a value that only one version has. A small object is recorded member by member.
    fn leaf(&mut self, path: &mut Vec<String>, value: &Value, how: fn(String) -> FieldChange) {
        if self.is_hidden(path) {
            return;
        }
        match value {
            Value::Object(members) if !members.is_empty() && members.len() <= 12 && path.len() < 3 => {
                for (name, value) in members {
                    path.push(member(name));
                    self.leaf(path, value, how);
                    path.pop();
                }
            }
            _ => {
                let shown = self.show(path, value);
                self.note(path, how(shown));
            }
        }
    }

    fn is_hidden(&self, path: &[String]) -> bool {
        match path {
            [metadata, field] if metadata == ".metadata" => {
                field == ".resourceVersion" || (field == ".managedFields" && !self.shown.managed_fields)
            }
            _ => false,
        }
    }

    /// Whether the values at this path are those of a Secret, or the annotation that repeats them.
    fn is_secret(&self, path: &[String]) -> bool {
        self.secret
            && (path.first().is_some_and(|first| first == ".data" || first == ".stringData")
                || path.last().is_some_and(|last| last.contains(LAST_APPLIED)))
    }

    fn show(&self, path: &[String], value: &Value) -> String {
        if self.is_secret(path) {
            return HIDDEN.to_owned();
        }
        let is_annotations = matches!(path, [metadata, field] if metadata == ".metadata" && field == ".annotations");
        let text = match value {
            // All annotations are new or removed, and there are too many for a line each.
            Value::Object(annotations) if self.secret && is_annotations => {
                let mut annotations = annotations.clone();
                if let Some(applied) = annotations.get_mut(LAST_APPLIED) {
                    *applied = HIDDEN.into();
                }
                Value::Object(annotations).to_string()
            }
            value => value.to_string(),
        };
        let length = text.chars().count();
        if length <= VALUE_LIMIT {
            return visible(&text);
        }
        let begin: String = text.chars().take(VALUE_LIMIT).collect();
        visible(&format!("{begin}… ({} more)", length - VALUE_LIMIT))
    }

    fn note(&mut self, path: &[String], how: FieldChange) {
        let path = path.concat();
        // A path begins without a dot.
        self.found.push(Difference { path: path.strip_prefix('.').unwrap_or(&path).to_owned(), how });
    }
}

/// Whether all elements have this member with distinct values.
fn names_all(list: &[Value], name: &str) -> bool {
    let names: Vec<&Value> = list.iter().filter_map(|value| value.get(name)).collect();
    let plain = names.iter().all(|name| name.is_string() || name.is_number());
    plain && names.len() == list.len() && names.iter().enumerate().all(|(at, name)| !names[..at].contains(name))
}

/// A member as a segment of a path: `.spec`, or `["a.b/c"]` for a name with dots.
fn member(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if plain { format!(".{name}") } else { format!("[{}]", visible(&Value::from(name).to_string())) }
}

fn bare(value: &Value) -> String {
    visible(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Escapes control characters and direction marks for output on a terminal.
pub(super) fn visible(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    if !text.chars().any(is_odd) {
        return text.to_owned();
    }
    text.chars().map(|c| if is_odd(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_with(shown: DiffOptions, old: &Value, new: &Value, expected: &[&str]) {
        let found: Vec<String> = difference(old, new, shown)
            .into_iter()
            .map(|Difference { path, how }| match how {
                FieldChange::Added(value) => format!("+ {path}: {value}"),
                FieldChange::Removed(value) => format!("- {path}: {value}"),
                FieldChange::Changed(old, new) => format!("{path}: {old} → {new}"),
                FieldChange::Text(line, gone, come) => format!("{path} line {line}: -{gone:?} +{come:?}"),
            })
            .collect();
        assert_eq!(found, expected, "{old} → {new}");
    }

    fn check(old: &Value, new: &Value, expected: &[&str]) {
        check_with(DiffOptions::default(), old, new, expected);
    }

    #[test]
    fn changed_field_is_named_by_its_path() {
        check(
            &json!({"spec": {"replicas": 3, "paused": true}, "metadata": {"resourceVersion": "1"}}),
            &json!({"spec": {"replicas": 5}, "metadata": {"resourceVersion": "2"}, "status": {"ready": 1}}),
            &["spec.replicas: 3 → 5", "- spec.paused: true", "+ status.ready: 1"],
        );
        check(
            &json!({"metadata": {"labels": {"a": "1"}}}),
            &json!({"metadata": {"labels": {"a": "1", "app.kubernetes.io/name": "x"}}}),
            &[r#"+ metadata.labels["app.kubernetes.io/name"]: "x""#],
        );
        check(&json!({"spec": {"a": null}}), &json!({"spec": {"a": [1]}}), &["spec.a: null → [1]"]);
        check(&json!({"spec": 1}), &json!({"spec": 1}), &[]);
    }

    #[test]
    fn list_elements_are_paired_by_name() {
        check(
            &json!({"spec": {"containers": [{"name": "app", "image": "a:1"}, {"name": "old", "image": "o"}]}}),
            &json!({"spec": {"containers": [{"name": "side", "image": "s"}, {"name": "app", "image": "a:2"}]}}),
            &[
                r#"+ spec.containers[name=side]: {"name":"side","image":"s"}"#,
                r#"spec.containers[name=app].image: "a:1" → "a:2""#,
                r#"- spec.containers[name=old]: {"name":"old","image":"o"}"#,
            ],
        );
        check(
            &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            &[r#"status.conditions[type=Ready].status: "False" → "True""#],
        );
        let twice = |port: u32| json!({"spec": {"ports": [{"name": "x", "port": port}, {"name": "x", "port": 9}]}});
        check(
            &twice(1),
            &twice(2),
            &[r#"+ spec.ports[port=2]: {"name":"x","port":2}"#, r#"- spec.ports[port=1]: {"name":"x","port":1}"#],
        );
    }

    #[test]
    fn list_elements_without_name_are_paired_by_index() {
        check(
            &json!({"spec": {"args": ["a", "b", "z"]}}),
            &json!({"spec": {"args": ["a", "x", "y", "z"]}}),
            &[r#"spec.args[1]: "b" → "x""#, r#"+ spec.args[2]: "y""#],
        );
        check(
            &json!({"metadata": {"finalizers": ["a", "b"]}}),
            &json!({"metadata": {"finalizers": ["b"]}}),
            &[r#"- metadata.finalizers[0]: "a""#],
        );
    }

    #[test]
    fn changed_text_shows_only_the_changed_lines() {
        check(
            &json!({"data": {"app.yaml": "a: 1\nb: 2\nc: 3\n"}}),
            &json!({"data": {"app.yaml": "a: 1\nb: 7\nx: 9\nc: 3\n"}}),
            &[r#"data["app.yaml"] line 2: -["b: 2"] +["b: 7", "x: 9"]"#],
        );
    }

    #[test]
    fn secrets_and_managed_fields_are_hidden_by_default() {
        let secret = |value: &str| {
            json!({"kind": "Secret", "apiVersion": "v1", "data": {"password": value},
                "metadata": {"managedFields": [value], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value}}})
        };
        check(
            &secret("b2xk"),
            &secret("bmV3"),
            &[
                "data.password: *** → ***",
                r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: *** → ***"#,
            ],
        );
        let all = DiffOptions { managed_fields: true, secrets: true };
        check_with(
            all,
            &secret("b2xk"),
            &secret("bmV3"),
            &[
                r#"data.password: "b2xk" → "bmV3""#,
                r#"metadata.managedFields[0]: "b2xk" → "bmV3""#,
                r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: "b2xk" → "bmV3""#,
            ],
        );
        let lines =
            |value: &str| json!({"kind": "Secret", "apiVersion": "v1", "stringData": {"a": format!("{value}\nx")}});
        check(&lines("1"), &lines("2"), &["stringData.a: *** → ***"]);
        // kubectl apply ends the annotation with a line break.
        let applied = |value: &str| {
            let annotations = json!({LAST_APPLIED: format!("{value}\n")});
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"annotations": annotations}})
        };
        let path = format!(r#"metadata.annotations["{LAST_APPLIED}"]"#);
        check(&applied("b2xk"), &applied("bmV3"), &[&format!("{path}: *** → ***")]);
        let mut many = applied("b2xk");
        (0..12).for_each(|n| many["metadata"]["annotations"][format!("a{n}")] = n.into());
        let without = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {}});
        let found = difference(&without, &many, DiffOptions::default());
        assert!(!format!("{found:?}").contains("b2xk"), "a value of a Secret is shown: {found:?}");
    }

    #[test]
    fn hidden_values_of_a_secret_leave_all_other_members() {
        let secret = |value: &str, applied: &str| {
            json!({"kind": "Secret", "data": {"b": value, "a": value}, "stringData": {"c": value}, "type": "Opaque",
                "metadata": {"name": "s", "annotations": {"x": "y", LAST_APPLIED: applied}}, "immutable": true})
        };
        let mut hidden = secret("b2xk", "{}\n");
        hide_values(&mut hidden);
        assert_eq!(hidden.to_string(), secret(HIDDEN, HIDDEN).to_string(), "members and their order stay");
        for mut unusual in [json!({"data": "b2xk"}), json!({"stringData": ["b2xk"]})] {
            hide_values(&mut unusual);
            assert!(!unusual.to_string().contains("b2xk"), "a value of a Secret is shown: {unusual}");
        }
        for mut empty in [json!({"data": null, "metadata": {}}), json!({"metadata": {"annotations": null}}), json!(1)] {
            let before = empty.clone();
            hide_values(&mut empty);
            assert_eq!(empty, before, "there is no value to hide");
        }
    }

    #[test]
    fn control_characters_are_escaped_and_long_values_are_cut() {
        let long = "x".repeat(1_000);
        let found = difference(&json!({"spec": {"a": 1}}), &json!({"spec": {"a": long}}), DiffOptions::default());
        let FieldChange::Changed(_, new) = &found[0].how else { panic!("it changed") };
        assert!(new.ends_with("x… (842 more)"), "{new}");
        check(
            &json!({"spec": {"a": "x"}}),
            &json!({"spec": {"a": "\u{1b}[2J\u{202e}", "b\u{9b}c": 1}}),
            &[r#"spec.a: "x" → "\u001b[2J\u202e""#, r#"+ spec["b\u009bc"]: 1"#],
        );
        assert_eq!(visible("tab\tbell\u{7}"), "tab\\u0009bell\\u0007");
    }
}
