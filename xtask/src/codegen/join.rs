//! Joins the messages of `generated.proto` with the Go structs, by field number.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::go::{Constant, Form, GoField, GoPackage, GoType, Value, tag};
use super::proto::{self, Messages, ProtoField};
use crate::failure::{Outcome, ensure, fail};

/// Messages whose JSON differs from their fields, and their names in the table.
const SPECIAL: &[(&str, &str)] = &[
    ("k8s.io.apimachinery.pkg.apis.meta.v1.Time", "Time"),
    ("k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime", "MicroTime"),
    ("k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1", "Raw"),
    ("k8s.io.apimachinery.pkg.api.resource.Quantity", "Quantity"),
    ("k8s.io.apimachinery.pkg.runtime.RawExtension", "Raw"),
    ("k8s.io.apimachinery.pkg.util.intstr.IntOrString", "IntOrString"),
    ("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON", "Raw"),
    ("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray", "PropsOrArray"),
    ("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool", "PropsOrBool"),
    ("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray", "PropsOrStrings"),
];

/// A message of the table.
pub(super) struct Message {
    /// Whether the message has `apiVersion` and `kind`.
    pub(super) is_object: bool,
    /// `x-kubernetes-map-type: atomic`.
    pub(super) is_atomic: bool,
    pub(super) fields: Vec<Field>,
}

/// A field of the table.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) shape: &'static str,
    /// The type's name in the table. If it is or holds a message, `message` is the full name.
    pub(super) of: String,
    pub(super) message: Option<String>,
    pub(super) omit: &'static str,
    /// Additional facts of OpenAPI, as calls of the row's methods.
    pub(super) constraints: Vec<String>,
}

/// All sources that were read.
#[derive(Default)]
pub(super) struct Sources {
    proto: Messages,
    /// Go packages by protobuf package.
    go: HashMap<String, GoPackage>,
    /// Protobuf packages by Go path.
    paths: HashMap<String, String>,
}

impl Sources {
    /// Reads `generated.proto` and the Go files of one package.
    pub(super) fn read(&mut self, package: &str, path: &str, folder: &Path) -> Outcome<()> {
        proto::read(package, &std::fs::read_to_string(folder.join("generated.proto"))?, &mut self.proto)?;
        self.paths.insert(path.to_owned(), package.to_owned());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            files.push(entry?.path());
        }
        files.sort();
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let generated =
                name.starts_with("zz_generated") || name.starts_with("generated.") || name.ends_with("_test.go");
            if name.ends_with(".go") && !generated {
                self.go.entry(package.to_owned()).or_default().read(&std::fs::read_to_string(&path)?);
            }
        }
        Ok(())
    }

    /// Each kind of the packages except lists: the messages with `apiVersion`, `kind` and metadata.
    pub(super) fn kinds(&self) -> Vec<String> {
        let mut kinds = Vec::new();
        for (package, go) in &self.go {
            for (name, of) in &go.types {
                let Form::Struct(fields) = &of.form else { continue };
                let has = |suffix: &str| fields.iter().any(|field| field.is_embedded && field.of.ends_with(suffix));
                if has("TypeMeta") && has("ObjectMeta") {
                    kinds.push(format!("{package}.{name}"));
                }
            }
        }
        kinds
    }

    /// A message, with its fields in the order in which Go prints them.
    pub(super) fn join(&self, name: &str) -> Outcome<Message> {
        let Some(proto) = self.proto.get(name) else { fail!("no generated.proto has this message") };
        let Some((package, short)) = name.rsplit_once('.') else { fail!("it has no package") };
        let Some(GoType { markers, form: Form::Struct(declared) }) = self.go_type(package, short) else {
            fail!("no Go struct has this name");
        };
        let mut message = Message { is_object: false, is_atomic: false, fields: Vec::new() };
        if let Some(of) = marker(markers, "structType").or(marker(markers, "mapType")) {
            ensure!(of == "atomic", "a type that is {of} has no rule");
            message.is_atomic = true;
        }
        let mut seen = BTreeSet::new();
        for go in declared {
            let (Some(json), protobuf) = (tag(&go.tags, "json"), tag(&go.tags, "protobuf")) else { continue };
            let mut options = json.split(',');
            let json_name = options.next().unwrap_or_default();
            let options: Vec<&str> = options.collect();
            // Before v1.37 such a field was marked `json:",inline"`, too.
            let is_inline = json_name.is_empty() && go.is_embedded;
            let Some(protobuf) = protobuf.filter(|tag| *tag != "-") else {
                // `kind` and `apiVersion` travel in the envelope.
                let is_type_meta = is_inline && go.of.ends_with("TypeMeta");
                ensure!(is_type_meta || json_name == "-", "{} has no number", go.of);
                message.is_object |= is_type_meta;
                continue;
            };
            let Some(number) = protobuf.split(',').nth(1).and_then(|number| number.parse::<u32>().ok()) else {
                fail!("no field number in {protobuf}");
            };
            let Some(wire) = proto.get(&number) else { fail!("generated.proto has no field {number}") };
            let named = protobuf.split(',').find_map(|part| part.strip_prefix("name="));
            ensure!(named.is_none_or(|named| named == wire.name), "field {number} has two names");
            ensure!(seen.insert(number), "field {number} is there twice");
            ensure!(number < 256, "field {number} does not fit the table");
            let field = self.field(package, go, json_name, number, is_inline, &options, wire);
            message.fields.push(field.map_err(|error| error.while_doing(json_name))?);
        }
        ensure!(seen.len() == proto.len(), "{} fields of {} have a Go field", seen.len(), proto.len());
        Ok(message)
    }

    #[allow(clippy::too_many_arguments)]
    fn field(
        &self,
        package: &str,
        go: &GoField,
        json_name: &str,
        number: u32,
        is_inline: bool,
        options: &[&str],
        wire: &ProtoField,
    ) -> Outcome<Field> {
        let is_pointer = go.of.starts_with('*');
        let shape = match (wire.label.as_str(), is_pointer, is_inline) {
            ("map", false, false) => "Map",
            ("repeated", false, false) => "Rep",
            ("optional" | "required", true, false) => "Ptr",
            ("optional" | "required", false, false) => "One",
            ("optional" | "required", false, true) => "Inl",
            _ => fail!("field {number} is {} and {} at once", wire.label, go.of),
        };
        ensure!(is_inline == json_name.is_empty(), "field {number} has no name");
        let (of, message) = self.wire_type(&wire.of)?;
        let omit = match (options.contains(&"omitempty"), options.contains(&"omitzero")) {
            (_, true) => "ZERO",
            (true, false) => "EMPTY",
            (false, false) => "NEVER",
        };
        let mut field = Field { name: json_name.to_owned(), number, shape, of, message, omit, constraints: Vec::new() };
        if !is_inline {
            field.constraints = self.constraints(package, go, &field)?;
        }
        Ok(field)
    }

    fn wire_type(&self, of: &str) -> Outcome<(String, Option<String>)> {
        let scalar = match of {
            "string" => "Str",
            "bool" => "Bool",
            "int32" => "I32",
            "int64" => "I64",
            "double" => "F64",
            "bytes" => "Bytes",
            _ => "",
        };
        if !scalar.is_empty() {
            return Ok((scalar.to_owned(), None));
        }
        if let Some((_, special)) = SPECIAL.iter().find(|(name, _)| *name == of) {
            let props = of.rsplit_once("Or").map(|(props, _)| props.to_owned());
            return Ok((special.to_string(), props.filter(|_| special.starts_with("Props"))));
        }
        let Some((package, name)) = of.rsplit_once('.') else { fail!("the type {of} has no rule") };
        // A named slice of strings is a message with one field on the wire.
        if let Some(GoType { form: Form::Alias(alias), .. }) = self.go_type(package, name) {
            ensure!(alias == "[]string", "{of} is {alias}, which has no rule");
            return Ok(("Strings".to_owned(), None));
        }
        Ok(("Msg".to_owned(), Some(of.to_owned())))
    }

    /// The facts that openapi-gen reads from markers and tags.
    fn constraints(&self, package: &str, go: &GoField, field: &Field) -> Outcome<Vec<String>> {
        let mut calls = Vec::new();
        let is_optional = match (has(&go.markers, "optional"), has(&go.markers, "required")) {
            (_, true) => false,
            (true, false) => true,
            (false, false) => field.omit != "NEVER",
        };
        if !is_optional {
            calls.push(".required()".to_owned());
        }
        let keys: Vec<&str> = values(&go.markers, "listMapKey").collect();
        match marker(&go.markers, "listType") {
            None => ensure!(keys.is_empty(), "map keys without a list type"),
            Some("map") => calls.push(format!(".keys({:?})", keys.join("|"))),
            Some("atomic") => calls.push(".list(Atomic)".to_owned()),
            Some("set") => calls.push(".list(Set)".to_owned()),
            Some(other) => fail!("the list type {other} has no rule"),
        }
        match marker(&go.markers, "mapType").or(marker(&go.markers, "structType")) {
            None => {}
            Some("atomic") => calls.push(".map(AtomicMap)".to_owned()),
            Some("granular") => calls.push(".map(Granular)".to_owned()),
            Some(other) => fail!("the map type {other} has no rule"),
        }
        calls.extend(patch(go)?);
        if let Some(default) = self.default_json(package, go)? {
            let usual = match (field.shape, field.of.as_str(), field.omit) {
                ("One", "Msg", _) => "{}",
                ("One", "Str", "NEVER") => "\"\"",
                ("One", "Bool", "NEVER") => "false",
                ("One", "I32" | "I64" | "F64", "NEVER") => "0",
                _ => "",
            };
            if default != usual {
                calls.push(format!(".default({default:?})"));
            }
        }
        let values = self.enumeration(package, go)?;
        if !values.is_empty() {
            let texts = values.into_iter().collect::<Vec<_>>().join("|");
            let call = if matches!(field.shape, "Rep" | "Map") { "each_one_of" } else { "one_of" };
            calls.push(format!(".{call}({texts:?})"));
        }
        Ok(calls)
    }

    /// The default as JSON: `+default=<JSON>` or `+default=ref(<constant>)`.
    fn default_json(&self, package: &str, go: &GoField) -> Outcome<Option<String>> {
        let Some(default) = marker(&go.markers, "default") else { return Ok(None) };
        let Some(name) = default.strip_prefix("ref(").and_then(|rest| rest.strip_suffix(')')) else {
            let is_json = serde_json::from_str::<serde_json::Value>(default).is_ok();
            ensure!(is_json, "the default {default} has no rule");
            return Ok(Some(default.to_owned()));
        };
        let name = name.rsplit('.').next().unwrap_or_default();
        let constant = self.go.get(package).and_then(|go| go.constants.get(name));
        let Some(constant) = constant else { fail!("no constant is called {name}") };
        self.literal(constant).map(|literal| Some(literal.to_owned()))
    }

    /// The value of a constant, through other packages.
    fn literal<'a>(&'a self, constant: &'a Constant) -> Outcome<&'a str> {
        let (path, name) = match &constant.value {
            Value::Literal(literal) => return Ok(literal),
            Value::Imported(path, name) => (path, name),
        };
        let package = self.paths.get(path).and_then(|package| self.go.get(package));
        match package.and_then(|go| go.constants.get(name)) {
            Some(constant) => self.literal(constant),
            None => fail!("{path} has no constant {name}"),
        }
    }

    /// The values of a field, of its items or of its members, whose type is marked `+enum`.
    fn enumeration(&self, package: &str, go: &GoField) -> Outcome<BTreeSet<&str>> {
        let of = go.of.split_once(']').map_or(go.of.as_str(), |(_, item)| item).trim_start_matches('*');
        let (package, name) = match of.split_once('.') {
            None => (package, of),
            Some((import, name)) => {
                let path = go.imports.get(import);
                let Some(package) = path.and_then(|path| self.paths.get(path)) else { return Ok(BTreeSet::new()) };
                (package.as_str(), name)
            }
        };
        match self.go_type(package, name) {
            Some(of) if has(&of.markers, "enum") => {
                let constants = self.go.get(package).into_iter().flat_map(|go| go.constants_of(name));
                let values: Outcome<BTreeSet<&str>> =
                    constants.map(|constant| Ok(self.literal(constant)?.trim_matches('"'))).collect();
                let values = values?;
                ensure!(!values.is_empty(), "the enumeration {name} has no values");
                Ok(values)
            }
            _ => Ok(BTreeSet::new()),
        }
    }

    fn go_type(&self, package: &str, name: &str) -> Option<&GoType> {
        self.go.get(package)?.types.get(name)
    }
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`, from markers or tags.
fn patch(go: &GoField) -> Outcome<Vec<String>> {
    let strategy = marker(&go.markers, "patchStrategy").or(tag(&go.tags, "patchStrategy")).unwrap_or_default();
    let key = marker(&go.markers, "patchMergeKey").or(tag(&go.tags, "patchMergeKey"));
    let mut calls = Vec::new();
    let mut has_key = false;
    for part in strategy.split(',').filter(|part| !part.is_empty()) {
        calls.push(match (part, key) {
            ("merge", Some(key)) => {
                has_key = true;
                format!(".merge_by({key:?})")
            }
            ("merge", None) => ".merge()".to_owned(),
            ("replace", _) => ".replace()".to_owned(),
            ("retainKeys", _) => ".retain_keys()".to_owned(),
            (other, _) => fail!("the patch strategy {other} has no rule"),
        });
    }
    ensure!(has_key == key.is_some(), "a merge key without a merge");
    Ok(calls)
}

fn has(markers: &[String], name: &str) -> bool {
    markers.iter().any(|marker| marker == name || marker.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
}

/// The value of a marker.
fn marker<'a>(markers: &'a [String], name: &str) -> Option<&'a str> {
    values(markers, name).next()
}

/// The values of a marker that may occur more than once.
fn values<'a>(markers: &'a [String], name: &str) -> impl Iterator<Item = &'a str> {
    markers.iter().filter_map(move |marker| marker.strip_prefix(name)?.strip_prefix('=')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::Sources;
    use crate::codegen::proto;

    const PROTO: &str = "message Thing {\n  // text\n  optional string id = 1;\n\n  map<string, bytes> data = 3;\n  \
                         repeated Other others = 2;\n}\nmessage Other {\n}\n";

    fn joined(go: &str) -> Result<Vec<String>, String> {
        let mut sources = Sources::default();
        proto::read("p.v1", PROTO, &mut sources.proto).map_err(|error| error.to_string())?;
        sources.go.entry("p.v1".to_owned()).or_default().read(go);
        let message = sources.join("p.v1.Thing").map_err(|error| error.to_string())?;
        let line = |f: &super::Field| {
            format!("{} {} {} {} {}{}", f.name, f.number, f.shape, f.of, f.omit, f.constraints.concat())
        };
        Ok(message.fields.iter().map(line).collect())
    }

    #[test]
    fn messages_and_structs_are_joined_by_field_number() {
        let go = "// +enum\ntype Color string\n\nconst (\n\t// Red is warm.\n\tRed Color = \"red\"\n\tBlue Color = \"blue\"\n)\n\n\
                  type Thing struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n\
                  \t// +listType=map\n\t// +listMapKey=a\n\t// +listMapKey=b\n\
                  \tOthers []Other `json:\"others\" patchStrategy:\"merge,retainKeys\" patchMergeKey:\"a\" protobuf:\"bytes,2,rep,name=others\"`\n\
                  \t// +default=ref(Blue)\n\
                  \tID *Color `json:\"ident,omitempty\" protobuf:\"bytes,1,opt,name=id\"`\n\
                  \t// Old string `json:\"old\" protobuf:\"bytes,9,opt,name=old\"`\n\
                  \t// +mapType=atomic\n\
                  \tData map[string][]byte `json:\"data,omitempty\" protobuf:\"bytes,3,rep,name=data\"`\n}\n";
        let expected = [
            r#"others 2 Rep Msg NEVER.required().keys("a|b").merge_by("a").retain_keys()"#,
            r#"ident 1 Ptr Str EMPTY.default("\"blue\"").one_of("blue|red")"#,
            "data 3 Map Bytes EMPTY.map(AtomicMap)",
        ];
        assert_eq!(joined(go), Ok(expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn disagreeing_proto_and_go_descriptions_are_an_error() {
        let rest = "\tID string `json:\"id\" protobuf:\"bytes,1,opt,name=id\"`\n";
        for (go, error) in [
            (format!("type Thing struct {{\n{rest}}}\n"), "1 fields of 3 have a Go field"),
            (format!("type Thing struct {{\n{rest}{rest}}}\n"), "field 1 is there twice"),
            ("type Thing string\n".to_owned(), "no Go struct has this name"),
            (format!("type Thing struct {{\n{}}}\n", rest.replace("1,opt", "7,opt")), "generated.proto has no field 7"),
            (format!("type Thing struct {{\n{}}}\n", rest.replace("name=id", "name=ID")), "field 1 has two names"),
            (format!("type Thing struct {{\n// +listType=tree\n{rest}}}\n"), "id: the list type tree has no rule"),
            (format!("type Thing struct {{\n// +default=blue\n{rest}}}\n"), "id: the default blue has no rule"),
        ] {
            assert_eq!(joined(&go), Err(error.to_owned()), "{go}");
        }
    }
}
