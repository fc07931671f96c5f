//! `cargo xtask codegen`: what protobuf needs to know of Kubernetes' types, as a table in Rust.
//!
//! Two public descriptions of the same types are read side by side and joined by field number:
//! `generated.proto` says number, label and wire type, the Go structs say what JSON calls a member,
//! whether it is a pointer and when Go leaves it out. Where the two disagree, the run fails.
//! The output holds facts alone (names, numbers, types), no text of the sources. A third description,
//! of what OpenAPI says beyond that, becomes a file of its own ([`facts`]).

mod facts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use crate::args::Args;
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::tools;

pub(crate) const HELP: &str = "\
Writes two files from Kubernetes' public type definitions. crates/wire/src/protobuf/table.rs has the
messages, field numbers, types and JSON names of every built-in kind that is served;
crates/apiserver/src/facts/table.txt what OpenAPI says of them beyond that. Run it when the
supported release of Kubernetes moves; the definitions are not part of this repository.

  --kubernetes DIR   a checkout of github.com/kubernetes/kubernetes at the supported release
  --check            compare with the files that are there, and change nothing

Usage: cargo xtask codegen --kubernetes DIR [--check]";

/// The release whose facts the table states; it is written into the table.
const RELEASE: &str = "v1.36";

/// Where the table lives, from the root.
const TABLE: &str = "crates/wire/src/protobuf/table.rs";

/// Where the facts live, from the root.
const FACTS: &str = "crates/apiserver/src/facts/table.txt";

/// The packages read: protobuf package, folder below `staging/src`, and the prefix that tells its
/// messages from those of the same name in others.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("k8s.io.api.admissionregistration.v1", "k8s.io/api/admissionregistration/v1", "Admission"),
    ("k8s.io.api.apidiscovery.v2", "k8s.io/api/apidiscovery/v2", "Discovery"),
    ("k8s.io.api.apps.v1", "k8s.io/api/apps/v1", "Apps"),
    ("k8s.io.api.authentication.v1", "k8s.io/api/authentication/v1", "Authentication"),
    ("k8s.io.api.authorization.v1", "k8s.io/api/authorization/v1", "Authorization"),
    ("k8s.io.api.autoscaling.v1", "k8s.io/api/autoscaling/v1", "AutoscalingV1"),
    ("k8s.io.api.autoscaling.v2", "k8s.io/api/autoscaling/v2", "Autoscaling"),
    ("k8s.io.api.batch.v1", "k8s.io/api/batch/v1", "Batch"),
    ("k8s.io.api.certificates.v1", "k8s.io/api/certificates/v1", "Certificates"),
    ("k8s.io.api.coordination.v1", "k8s.io/api/coordination/v1", "Coordination"),
    ("k8s.io.api.core.v1", "k8s.io/api/core/v1", "Core"),
    ("k8s.io.api.discovery.v1", "k8s.io/api/discovery/v1", "Endpoints"),
    ("k8s.io.api.events.v1", "k8s.io/api/events/v1", "Events"),
    ("k8s.io.api.flowcontrol.v1", "k8s.io/api/flowcontrol/v1", "Flow"),
    ("k8s.io.api.networking.v1", "k8s.io/api/networking/v1", "Networking"),
    ("k8s.io.api.node.v1", "k8s.io/api/node/v1", "Node"),
    ("k8s.io.api.policy.v1", "k8s.io/api/policy/v1", "Policy"),
    ("k8s.io.api.rbac.v1", "k8s.io/api/rbac/v1", "Rbac"),
    ("k8s.io.api.resource.v1", "k8s.io/api/resource/v1", "Resource"),
    ("k8s.io.api.scheduling.v1", "k8s.io/api/scheduling/v1", "Scheduling"),
    ("k8s.io.api.storage.v1", "k8s.io/api/storage/v1", "Storage"),
    (
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1",
        "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
        "Extension",
    ),
    ("k8s.io.apimachinery.pkg.apis.meta.v1", "k8s.io/apimachinery/pkg/apis/meta/v1", "Meta"),
    (
        "k8s.io.kube_aggregator.pkg.apis.apiregistration.v1",
        "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
        "Registration",
    ),
];

/// The kinds in the table: `apiVersion` on the wire, package, kinds. `Foo+` is Foo and FooList.
/// The `apiVersion` of kinds that every group version has is empty.
const KINDS: &[(&str, &str, &str)] = &[
    (
        "v1",
        "k8s.io.api.core.v1",
        "Binding ConfigMap+ ComponentStatus+ Endpoints+ Event+ LimitRange+ Namespace+ Node+ PersistentVolume+ \
         PersistentVolumeClaim+ Pod+ PodTemplate+ ReplicationController+ ResourceQuota+ Secret+ Service+ \
         ServiceAccount+",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "k8s.io.api.admissionregistration.v1",
        "MutatingAdmissionPolicy+ MutatingAdmissionPolicyBinding+ MutatingWebhookConfiguration+ \
         ValidatingAdmissionPolicy+ ValidatingAdmissionPolicyBinding+ ValidatingWebhookConfiguration+",
    ),
    (
        "apiextensions.k8s.io/v1",
        "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1",
        "CustomResourceDefinition+",
    ),
    ("apidiscovery.k8s.io/v2", "k8s.io.api.apidiscovery.v2", "APIGroupDiscovery+"),
    ("apiregistration.k8s.io/v1", "k8s.io.kube_aggregator.pkg.apis.apiregistration.v1", "APIService+"),
    ("apps/v1", "k8s.io.api.apps.v1", "ControllerRevision+ DaemonSet+ Deployment+ ReplicaSet+ StatefulSet+"),
    ("authentication.k8s.io/v1", "k8s.io.api.authentication.v1", "SelfSubjectReview TokenRequest TokenReview"),
    (
        "authorization.k8s.io/v1",
        "k8s.io.api.authorization.v1",
        "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    ),
    ("autoscaling/v1", "k8s.io.api.autoscaling.v1", "HorizontalPodAutoscaler+ Scale"),
    ("autoscaling/v2", "k8s.io.api.autoscaling.v2", "HorizontalPodAutoscaler+"),
    ("batch/v1", "k8s.io.api.batch.v1", "CronJob+ Job+"),
    ("certificates.k8s.io/v1", "k8s.io.api.certificates.v1", "CertificateSigningRequest+"),
    ("coordination.k8s.io/v1", "k8s.io.api.coordination.v1", "Lease+"),
    ("discovery.k8s.io/v1", "k8s.io.api.discovery.v1", "EndpointSlice+"),
    ("events.k8s.io/v1", "k8s.io.api.events.v1", "Event+"),
    ("flowcontrol.apiserver.k8s.io/v1", "k8s.io.api.flowcontrol.v1", "FlowSchema+ PriorityLevelConfiguration+"),
    (
        "networking.k8s.io/v1",
        "k8s.io.api.networking.v1",
        "IPAddress+ Ingress+ IngressClass+ NetworkPolicy+ ServiceCIDR+",
    ),
    ("node.k8s.io/v1", "k8s.io.api.node.v1", "RuntimeClass+"),
    ("policy/v1", "k8s.io.api.policy.v1", "Eviction PodDisruptionBudget+"),
    ("rbac.authorization.k8s.io/v1", "k8s.io.api.rbac.v1", "ClusterRole+ ClusterRoleBinding+ Role+ RoleBinding+"),
    (
        "resource.k8s.io/v1",
        "k8s.io.api.resource.v1",
        "DeviceClass+ ResourceClaim+ ResourceClaimTemplate+ ResourceSlice+",
    ),
    ("scheduling.k8s.io/v1", "k8s.io.api.scheduling.v1", "PriorityClass+"),
    (
        "storage.k8s.io/v1",
        "k8s.io.api.storage.v1",
        "CSIDriver+ CSINode+ CSIStorageCapacity+ StorageClass+ VolumeAttachment+ VolumeAttributesClass+",
    ),
    ("v1", "k8s.io.apimachinery.pkg.apis.meta.v1", "APIGroup+ APIResourceList APIVersions Status"),
    ("meta.k8s.io/v1", "k8s.io.apimachinery.pkg.apis.meta.v1", "PartialObjectMetadata+"),
    (
        "",
        "k8s.io.apimachinery.pkg.apis.meta.v1",
        "CreateOptions DeleteOptions GetOptions ListOptions PatchOptions UpdateOptions",
    ),
];

/// Messages whose JSON is not that of their fields, and what the table calls them.
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

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let check = args.flag("--check");
    let Some(dir) = args.value("--kubernetes")? else {
        fail!("say where Kubernetes' sources are: --kubernetes DIR");
    };
    args.finish("codegen")?;
    let (table, facts) = generate(Path::new(&dir))?;
    for (file, text) in [(TABLE, table), (FACTS, facts)] {
        let path = tools::root().join(file);
        if !check {
            std::fs::write(&path, &text)?;
            println!("{file}: {} lines", text.lines().count());
            continue;
        }
        let there = std::fs::read_to_string(&path)?;
        if let Some(line) = there.lines().zip(text.lines()).position(|(old, new)| old != new) {
            fail!("{file}:{}: not what Kubernetes says; run codegen without --check", line + 1);
        }
        ensure!(there == text, "{file} is not as long as it should be; run codegen without --check");
        println!("{file} is what Kubernetes says");
    }
    Ok(())
}

/// The table of messages, and the facts of the same messages in the same order.
fn generate(kubernetes: &Path) -> Outcome<(String, String)> {
    let mut sources = Sources::default();
    for (package, folder, _) in PACKAGES {
        let folder = kubernetes.join("staging/src").join(folder);
        sources.read(package, &folder).map_err(|error| error.while_doing(folder.display()))?;
    }
    let mut roots = BTreeMap::new();
    for (api_version, package, kinds) in KINDS {
        for kind in kinds.split_whitespace() {
            let name = kind.trim_end_matches('+');
            roots.insert((*api_version, name.to_owned()), format!("{package}.{name}"));
            if kind.ends_with('+') {
                roots.insert((*api_version, format!("{name}List")), format!("{package}.{name}List"));
            }
        }
    }
    let mut table = Table::default();
    let mut open: Vec<String> = roots.values().cloned().collect();
    while let Some(name) = open.pop() {
        if table.messages.contains_key(&name) {
            continue;
        }
        let fields = sources.join(&name).map_err(|error| error.while_doing(&name))?;
        open.extend(fields.iter().filter_map(|field| field.message.clone()));
        table.messages.insert(name, fields);
    }
    for ((api_version, kind), message) in &roots {
        table.kinds.push((api_version.to_string(), kind.clone(), message.clone()));
    }
    let file = kubernetes.join(facts::DEFINITIONS);
    let text = std::fs::read_to_string(&file).map_err(|error| Failure::from(error).while_doing(file.display()))?;
    let definitions =
        facts::Definitions::read(&text, &sources.constants).map_err(|error| error.while_doing(file.display()))?;
    Ok((table.print()?, definitions.print(&table.flat()?)?))
}

/// One field, as the table states it.
struct Field {
    name: String,
    number: u32,
    shape: &'static str,
    /// The type's name; for a message and for what holds one, see `message`.
    of: String,
    message: Option<String>,
    omit: &'static str,
}

/// A message as JSON has it.
struct Flat<'a> {
    /// The Go folder of its package.
    folder: &'a str,
    package: &'a str,
    name: &'a str,
    /// Its fields, with those of embedded messages in their place.
    members: Vec<&'a Field>,
}

/// A field in `generated.proto`.
#[derive(Clone)]
struct ProtoField {
    label: String,
    of: String,
    name: String,
}

/// A field of a Go struct.
struct GoField {
    of: String,
    tags: String,
}

/// A Go type: a struct's fields in their order, or what else it is another name for.
enum GoType {
    Struct(Vec<GoField>),
    Alias(String),
}

#[derive(Default)]
struct Sources {
    /// Messages by their full name, fields by number.
    proto: HashMap<String, BTreeMap<u32, ProtoField>>,
    /// Go types by package and name, as in protobuf.
    go: HashMap<String, GoType>,
    /// The texts that Go constants stand for, by name; of one name there may be several.
    constants: HashMap<String, BTreeSet<String>>,
}

impl Sources {
    fn read(&mut self, package: &str, folder: &Path) -> Outcome<()> {
        let proto = std::fs::read_to_string(folder.join("generated.proto"))?;
        self.read_proto(package, &proto)?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            files.push(entry?.path());
        }
        files.sort();
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let types = name.ends_with(".go")
                && !name.ends_with("_test.go")
                && !name.starts_with("zz_generated")
                && name != "generated.pb.go";
            if types {
                self.read_go(package, &std::fs::read_to_string(&path)?);
            }
        }
        Ok(())
    }

    fn read_proto(&mut self, package: &str, text: &str) -> Outcome<()> {
        let mut message: Option<(String, BTreeMap<u32, ProtoField>)> = None;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
                message = Some((format!("{package}.{name}"), BTreeMap::new()));
            } else if line == "}" {
                self.proto.extend(message.take());
            } else if let Some((name, fields)) = &mut message {
                if line.is_empty() || line.starts_with("//") {
                    continue;
                }
                let Some((left, number)) = line.trim_end_matches(';').rsplit_once(" = ") else {
                    fail!("{name}: this line is no field: {line}");
                };
                let Some((typed, field)) = left.rsplit_once(' ') else { fail!("{name}: no type: {line}") };
                let (label, of) = match typed.split_once(' ') {
                    Some((label @ ("optional" | "required" | "repeated"), of)) => (label, of),
                    _ => ("map", typed.trim_start_matches("map<string, ").trim_end_matches('>')),
                };
                ensure!(!of.contains(['<', ',']), "{name}: a map of something else than strings: {line}");
                let number = number.parse().map_err(|_| Failure::from(format!("{name}: no number: {line}")))?;
                // `.a.b.C` is a full name, `C` a message of this package.
                let of = match of.strip_prefix('.') {
                    Some(full) => full.to_owned(),
                    None if of.starts_with("k8s.io.") || is_scalar(of) => of.to_owned(),
                    None => format!("{package}.{of}"),
                };
                fields.insert(number, ProtoField { label: label.to_owned(), of, name: field.to_owned() });
            }
        }
        Ok(())
    }

    fn read_go(&mut self, package: &str, text: &str) {
        let mut open: Option<(String, Vec<GoField>)> = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("type ") {
                if let Some(name) = rest.strip_suffix(" struct {") {
                    open = Some((format!("{package}.{name}"), Vec::new()));
                } else if let Some(name) = rest.strip_suffix(" struct{}") {
                    self.go.insert(format!("{package}.{name}"), GoType::Struct(Vec::new()));
                } else if let Some((name, of)) = rest.split_once(' ') {
                    self.go.insert(format!("{package}.{name}"), GoType::Alias(of.to_owned()));
                }
            } else if line == "}" {
                if let Some((name, fields)) = open.take() {
                    self.go.insert(name, GoType::Struct(fields));
                }
            } else if let Some((_, fields)) = &mut open {
                let Some((declared, rest)) = line.split_once('`') else { continue };
                if declared.starts_with("//") {
                    continue;
                }
                let tags = rest.split('`').next().unwrap_or_default().to_owned();
                let of = declared.split_whitespace().last().unwrap_or_default().to_owned();
                fields.push(GoField { of, tags });
            } else if let Some((declared, value)) = line.split_once(" = ") {
                let name = declared.trim_start_matches("const ").split_whitespace().next().unwrap_or_default();
                if value.starts_with('"') {
                    self.constants.entry(name.to_owned()).or_default().insert(value.to_owned());
                }
            }
        }
    }

    /// The fields of a message in the order in which Go prints them.
    fn join(&self, name: &str) -> Outcome<Vec<Field>> {
        let Some(proto) = self.proto.get(name) else { fail!("no generated.proto has this message") };
        let Some(GoType::Struct(declared)) = self.go.get(name) else { fail!("no Go struct has this name") };
        let mut fields = Vec::new();
        let mut seen = BTreeSet::new();
        for go in declared {
            let (Some(json), protobuf) = (tag(&go.tags, "json"), tag(&go.tags, "protobuf")) else { continue };
            let mut options = json.split(',');
            let json_name = options.next().unwrap_or_default();
            let options: Vec<&str> = options.collect();
            let inline = options.contains(&"inline");
            let Some(protobuf) = protobuf.filter(|tag| *tag != "-") else {
                // `kind` and `apiVersion` travel in the envelope.
                ensure!(inline && go.of.ends_with("TypeMeta") || json_name == "-", "{} has no number", go.of);
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
            fields.push(self.field(go, json_name, number, inline, &options, wire)?);
        }
        ensure!(seen.len() == proto.len(), "{} fields of {} have a Go field", seen.len(), proto.len());
        Ok(fields)
    }

    fn field(
        &self,
        go: &GoField,
        json_name: &str,
        number: u32,
        inline: bool,
        options: &[&str],
        wire: &ProtoField,
    ) -> Outcome<Field> {
        let pointer = go.of.starts_with('*');
        let shape = match (wire.label.as_str(), pointer, inline) {
            ("map", false, false) => "Map",
            ("repeated", false, false) => "Rep",
            ("optional" | "required", true, false) => "Ptr",
            ("optional" | "required", false, false) => "One",
            ("optional" | "required", false, true) => "Inl",
            _ => fail!("field {number} is {} and {} at once", wire.label, go.of),
        };
        ensure!(inline == json_name.is_empty(), "field {number} is called {json_name:?}");
        let (of, message) = self.wire_type(&wire.of)?;
        let omit = match (options.contains(&"omitempty"), options.contains(&"omitzero")) {
            (_, true) => "ZERO",
            (true, false) => "EMPTY",
            (false, false) => "NEVER",
        };
        Ok(Field { name: json_name.to_owned(), number, shape, of, message, omit })
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
        // A named slice of strings is a message with one field on the wire.
        if let Some(GoType::Alias(alias)) = self.go.get(of) {
            ensure!(alias == "[]string", "{of} is {alias}, which has no rule");
            return Ok(("Strings".to_owned(), None));
        }
        Ok(("Msg".to_owned(), Some(of.to_owned())))
    }
}

fn is_scalar(of: &str) -> bool {
    matches!(of, "string" | "bool" | "int32" | "int64" | "double" | "bytes" | "uint32" | "uint64" | "float")
}

/// The value of one tag of a Go struct's field.
fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let at = tags.find(&format!("{name}:\""))? + name.len() + 2;
    tags[at..].split('"').next()
}

#[derive(Default)]
struct Table {
    messages: BTreeMap<String, Vec<Field>>,
    kinds: Vec<(String, String, String)>,
}

impl Table {
    /// Each message in the order of the table.
    fn flat(&self) -> Outcome<Vec<Flat<'_>>> {
        let mut flat = Vec::new();
        for name in self.ids()?.into_values() {
            let Some((package, message)) = name.rsplit_once('.') else { fail!("{name} has no package") };
            let Some((_, folder, _)) = PACKAGES.iter().find(|(known, ..)| *known == package) else {
                fail!("{name} is of a package that is not read");
            };
            let mut members = Vec::new();
            self.members(name, &mut members);
            flat.push(Flat { folder, package, name: message, members });
        }
        Ok(flat)
    }

    fn members<'a>(&'a self, name: &str, into: &mut Vec<&'a Field>) {
        for field in &self.messages[name] {
            match &field.message {
                Some(embedded) if field.shape == "Inl" => self.members(embedded, into),
                _ => into.push(field),
            }
        }
    }

    /// The messages by their identifiers, which give the order.
    fn ids(&self) -> Outcome<BTreeMap<String, &str>> {
        let mut ids = BTreeMap::new();
        for name in self.messages.keys() {
            let Some((package, message)) = name.rsplit_once('.') else { fail!("{name} has no package") };
            let Some((_, _, prefix)) = PACKAGES.iter().find(|(known, ..)| *known == package) else {
                fail!("{name} is of a package that is not read");
            };
            ids.insert(format!("{prefix}{message}"), name.as_str());
        }
        ensure!(ids.len() == self.messages.len(), "two messages have one identifier");
        Ok(ids)
    }

    fn print(&self) -> Outcome<String> {
        let ids = self.ids()?;
        let id_of: HashMap<&str, &str> = ids.iter().map(|(id, name)| (*name, id.as_str())).collect();

        let mut out = String::new();
        out.push_str(HEADER);
        write_to(
            &mut out,
            format_args!("/// The release that the table describes.\npub const RELEASE: &str = {RELEASE:?};\n\n"),
        );
        out.push_str("/// A message of the table; the value is its place in it.\n");
        out.push_str(
            "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\n#[repr(u16)]\n#[allow(missing_docs)]\npub enum Id {\n",
        );
        let mut line = String::new();
        for id in ids.keys() {
            if line.len() + id.len() > 110 {
                write_to(&mut out, format_args!("   {line}\n"));
                line.clear();
            }
            write_to(&mut line, format_args!(" {id},"));
        }
        write_to(&mut out, format_args!("   {line}\n"));
        out.push_str("}\n\nuse Id::*;\n\n");
        out.push_str("pub(super) const KINDS: &[KindRow] = &[\n");
        let mut kinds = self.kinds.clone();
        kinds.sort();
        for (api_version, kind, message) in &kinds {
            write_to(&mut out, format_args!("    k({api_version:?}, {kind:?}, {}),\n", id_of[message.as_str()]));
        }
        out.push_str("];\n\npub(super) const MESSAGES: &[MessageRow] = &[\n");
        for (id, name) in &ids {
            write_to(&mut out, format_args!("    m({id}, {:?}, &[", name.rsplit('.').next().unwrap_or(name)));
            for (place, field) in self.messages[*name].iter().enumerate() {
                let of = match &field.message {
                    Some(message) => format!("{}({})", field.of, id_of[message.as_str()]),
                    None => field.of.clone(),
                };
                let comma = if place == 0 { "" } else { ", " };
                let Field { name, number, shape, omit, .. } = field;
                write_to(&mut out, format_args!("{comma}f({name:?}, {number}, {shape}, {of}, {omit})"));
            }
            out.push_str("]),\n");
        }
        out.push_str("];\n");
        Ok(out)
    }
}

/// Writing to a string does not fail.
fn write_to(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

const HEADER: &str = "\
//! Generated by `cargo xtask codegen`; changes here are lost.
//!
//! Facts about Kubernetes' types: message, JSON name, field number, shape, type, and when Go's JSON
//! leaves the member out; fields in the order in which Go prints them. Taken from `generated.proto`
//! and the Go structs of k8s.io/api, apimachinery, apiextensions-apiserver and kube-aggregator
//! (Apache-2.0, The Kubernetes Authors). A message is one line, so that a release is a readable diff.

use super::schema::Omit::{Empty as EMPTY, Never as NEVER, Zero as ZERO};
use super::schema::Shape::{Inline as Inl, Map, One, Pointer as Ptr, Repeated as Rep};
use super::schema::Type::{
    Bool, Bytes, Double as F64, Int32 as I32, Int64 as I64, IntOrString, Message as Msg, MicroTime, PropsOrArray,
    PropsOrBool, PropsOrStrings, Quantity, Raw, String as Str, Strings, Time,
};
use super::schema::{KindRow, MessageRow, field as f, kind as k, message as m};

";

#[cfg(test)]
mod tests {
    use super::{Sources, tag};

    const PROTO: &str = "message Thing {\n  // text\n  optional string id = 1;\n\n  map<string, bytes> data = 3;\n  \
                         repeated Other others = 2;\n}\nmessage Other {\n}\n";

    fn joined(go: &str) -> Result<Vec<String>, String> {
        let mut sources = Sources::default();
        sources.read_proto("p.v1", PROTO).map_err(|error| error.to_string())?;
        sources.read_go("p.v1", go);
        let fields = sources.join("p.v1.Thing").map_err(|error| error.to_string())?;
        Ok(fields.iter().map(|f| format!("{} {} {} {} {}", f.name, f.number, f.shape, f.of, f.omit)).collect())
    }

    #[test]
    fn two_descriptions_become_one() {
        let go = "type Thing struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n\
                  \tOthers []Other `json:\"others\" protobuf:\"bytes,2,rep,name=others\"`\n\
                  \tID *string `json:\"ident,omitempty\" protobuf:\"bytes,1,opt,name=id\"`\n\
                  \t// Old string `json:\"old\" protobuf:\"bytes,9,opt,name=old\"`\n\
                  \tData map[string][]byte `json:\"data,omitempty\" protobuf:\"bytes,3,rep,name=data\"`\n}\n";
        let expected = ["others 2 Rep Msg NEVER", "ident 1 Ptr Str EMPTY", "data 3 Map Bytes EMPTY"];
        assert_eq!(joined(go), Ok(expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn descriptions_that_disagree_are_an_error() {
        let rest = "\tID string `json:\"id\" protobuf:\"bytes,1,opt,name=id\"`\n";
        for (go, error) in [
            (format!("type Thing struct {{\n{rest}}}\n"), "1 fields of 3 have a Go field"),
            (format!("type Thing struct {{\n{rest}{rest}}}\n"), "field 1 is there twice"),
            ("type Thing string\n".to_owned(), "no Go struct has this name"),
            (format!("type Thing struct {{\n{}}}\n", rest.replace("1,opt", "7,opt")), "generated.proto has no field 7"),
            (format!("type Thing struct {{\n{}}}\n", rest.replace("name=id", "name=ID")), "field 1 has two names"),
        ] {
            assert_eq!(joined(&go), Err(error.to_owned()), "{go}");
        }
    }

    #[test]
    fn tags_are_told_apart() {
        let tags = "json:\"a,omitempty\" patchStrategy:\"merge\" protobuf:\"bytes,1,opt,name=a\"";
        assert_eq!(tag(tags, "json"), Some("a,omitempty"));
        assert_eq!(tag(tags, "protobuf"), Some("bytes,1,opt,name=a"));
        assert_eq!(tag(tags, "yaml"), None);
    }
}
