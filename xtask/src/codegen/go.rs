//! Reads the types, constants and markers of one Go package, line by line.
//!
//! Kubernetes' type files are formatted by gofmt and use only a few forms, so no full parser is
//! needed.

use std::collections::{BTreeMap, HashMap};

/// A Go type.
pub(super) struct GoType {
    /// Markers such as `enum` or `structType=atomic`.
    pub(super) markers: Vec<String>,
    pub(super) form: Form,
}

/// The fields of a struct in their order, or the target of a named type.
pub(super) enum Form {
    Struct(Vec<GoField>),
    Alias(String),
}

/// A field of a Go struct.
pub(super) struct GoField {
    /// The type as written, e.g. `[]v1.Toleration`.
    pub(super) of: String,
    /// Whether the field has no name: an embedded struct.
    pub(super) is_embedded: bool,
    pub(super) tags: String,
    pub(super) markers: Vec<String>,
    /// Path of the package of each import of the file, by its name there.
    pub(super) imports: std::rc::Rc<HashMap<String, String>>,
}

/// The types and text constants of one package.
#[derive(Default)]
pub(super) struct GoPackage {
    pub(super) types: HashMap<String, GoType>,
    pub(super) constants: BTreeMap<String, Constant>,
}

/// A text constant.
pub(super) struct Constant {
    /// The name of its type; empty if it has none.
    of: String,
    pub(super) value: Value,
}

/// The value of a constant.
pub(super) enum Value {
    /// A Go literal that is also JSON.
    Literal(String),
    /// A constant of another package: its path and name.
    Imported(String, String),
}

impl GoPackage {
    /// Adds the declarations of one file.
    pub(super) fn read(&mut self, text: &str) {
        let imports = std::rc::Rc::new(imports(text));
        let mut markers: Vec<String> = Vec::new();
        let mut open: Option<(String, Vec<String>, Vec<GoField>)> = None;
        for line in text.lines().map(str::trim) {
            if let Some(comment) = line.strip_prefix("//") {
                markers.extend(comment.trim_start().strip_prefix('+').map(|marker| marker.trim().to_owned()));
                continue;
            }
            if line.is_empty() {
                // A type may have its markers in a block of their own; a field may not.
                if open.is_some() {
                    markers.clear();
                }
                continue;
            }
            let markers = std::mem::take(&mut markers);
            if let Some(rest) = line.strip_prefix("type ") {
                if let Some(name) = rest.strip_suffix(" struct {") {
                    open = Some((name.to_owned(), markers, Vec::new()));
                } else if let Some((name, of)) = rest.split_once(' ') {
                    let form = match of {
                        "struct{}" => Form::Struct(Vec::new()),
                        of => Form::Alias(of.to_owned()),
                    };
                    self.types.insert(name.to_owned(), GoType { markers, form });
                }
            } else if line == "}" {
                if let Some((name, markers, fields)) = open.take() {
                    self.types.insert(name, GoType { markers, form: Form::Struct(fields) });
                }
            } else if let Some((.., fields)) = &mut open {
                let Some((declared, rest)) = line.split_once('`') else { continue };
                let tags = rest.split('`').next().unwrap_or_default().to_owned();
                let of = declared.split_whitespace().last().unwrap_or_default().to_owned();
                let is_embedded = declared.trim() == of;
                fields.push(GoField { of, is_embedded, tags, markers, imports: imports.clone() });
            } else if let Some((declared, value)) = line.split_once(" = ") {
                let mut words = declared.trim_start_matches("const ").split_whitespace();
                let name = words.next().unwrap_or_default().to_owned();
                let of = words.next().unwrap_or_default().to_owned();
                // `A Type = "a"`, `A = Type("a")` or `A = Type(v1.A)`.
                let (of, value) = match value.split_once('(') {
                    Some((of, value)) => (of.to_owned(), value),
                    None => (of, value),
                };
                let imported = || {
                    let (import, name) = value.split_once(')')?.0.split_once('.')?;
                    Some(Value::Imported(imports.get(import)?.clone(), name.to_owned()))
                };
                let literal = || {
                    let end = value.strip_prefix('"')?.find('"')?;
                    Some(Value::Literal(value[..end + 2].to_owned()))
                };
                if let Some(value) = literal().or_else(imported) {
                    self.constants.insert(name, Constant { of, value });
                }
            }
        }
    }

    /// The constants of a type.
    pub(super) fn constants_of(&self, of: &str) -> impl Iterator<Item = &Constant> {
        self.constants.values().filter(move |constant| constant.of == of)
    }
}

/// Paths of imported packages by their names in the file.
fn imports(text: &str) -> HashMap<String, String> {
    let mut imports = HashMap::new();
    for line in text.lines().take_while(|line| !line.starts_with("type ")).map(str::trim) {
        let line = line.strip_prefix("import ").unwrap_or(line);
        let Some((name, rest)) = line.split_once('"') else { continue };
        let Some(path) = rest.strip_suffix('"').filter(|path| path.starts_with("k8s.io/")) else { continue };
        let name = match name.trim() {
            "" => path.rsplit('/').next().unwrap_or_default(),
            name => name,
        };
        imports.insert(name.to_owned(), path.to_owned());
    }
    imports
}

/// The value of one tag of a struct's field.
pub(super) fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let at = tags.find(&format!("{name}:\""))? + name.len() + 2;
    tags[at..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn struct_tag_is_found_by_its_name() {
        let tags = "json:\"a,omitempty\" patchStrategy:\"merge\" protobuf:\"bytes,1,opt,name=a\"";
        assert_eq!(tag(tags, "json"), Some("a,omitempty"));
        assert_eq!(tag(tags, "protobuf"), Some("bytes,1,opt,name=a"));
        assert_eq!(tag(tags, "yaml"), None);
    }
}
