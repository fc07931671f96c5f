//! The public surface of one crate: the items that other crates can name, and their signatures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::scan::{Chunk, Source, one_line};
use crate::failure::{Outcome, ensure};

/// The definition of an item: module and name.
type Place = (String, String);

/// A crate, module by module. A module's key is its path from the root, `a::b`; the root's is empty.
#[derive(Default)]
pub(super) struct Crate {
    modules: BTreeMap<String, Module>,
}

#[derive(Default)]
struct Module {
    items: BTreeMap<String, Item>,
    uses: Vec<Use>,
    /// Names of modules below, whether they are public, and their features.
    children: BTreeMap<String, (bool, String)>,
    impls: Vec<Impl>,
}

struct Item {
    public: bool,
    /// The source in one line, without `pub`.
    head: String,
    derives: Vec<String>,
    non_exhaustive: bool,
    features: String,
    /// The public members of the body, each in one line.
    members: Vec<String>,
}

struct Use {
    public: bool,
    features: String,
    /// `None` is a glob.
    name: Option<String>,
    path: Vec<String>,
}

struct Impl {
    /// The trait with its generics, or nothing.
    of: Option<String>,
    head: String,
    /// The last word of the type's path.
    for_type: String,
    features: String,
    /// Public functions and constants, each in one line, with their features.
    members: Vec<(String, String)>,
}

/// The target of a path.
enum Target {
    Module(String),
    Item(Place),
    /// The name of another crate, and the path below it.
    Outside(String),
}

/// One line of the listing.
pub(super) struct Line {
    pub(super) text: String,
    /// The last name of the path.
    pub(super) name: String,
    /// Crates outside of this repository whose names are in the line.
    pub(super) foreign: BTreeSet<String>,
}

impl Crate {
    /// Reads a crate, beginning at `src/lib.rs`.
    pub(super) fn read(root: &Path) -> Outcome<Self> {
        let mut this = Crate::default();
        this.read_file(String::new(), &root.join("src/lib.rs"))?;
        Ok(this)
    }

    fn read_file(&mut self, key: String, file: &Path) -> Outcome<()> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| crate::failure::Failure::from(error).while_doing(file.display()))?;
        let source = Source::new(text);
        let is_root = matches!(file.file_name().and_then(|name| name.to_str()), Some("lib.rs" | "mod.rs"));
        let folder = if is_root { file.parent().unwrap_or(file).to_owned() } else { file.with_extension("") };
        self.read_items(key, &source, source.items(source.whole()), &folder)
    }

    fn read_items(&mut self, key: String, source: &Source, chunks: Vec<Chunk>, folder: &Path) -> Outcome<()> {
        let mut module = Module::default();
        let mut below: Vec<(String, PathBuf)> = Vec::new();
        for chunk in chunks {
            if is_for_tests(&chunk.attributes) {
                continue;
            }
            let head = source.head(&chunk);
            let features = features(&chunk.attributes);
            let (public, rest) = match head.strip_prefix("pub ") {
                Some(rest) => (true, rest.to_owned()),
                None if head.starts_with("pub(") => {
                    (false, head.split_once(") ").map_or("", |(_, rest)| rest).to_owned())
                }
                None => (false, head.clone()),
            };
            let Some((kind, name)) = kind_and_name(&rest) else { continue };
            match kind {
                "use" => {
                    let tree = rest.trim_start_matches("use ").to_owned();
                    expand(&tree, &[], &mut |path, name| {
                        module.uses.push(Use { public, features: features.clone(), name, path });
                    });
                }
                "mod" => {
                    module.children.insert(name.clone(), (public, features));
                    let inner = if key.is_empty() { name.clone() } else { format!("{key}::{name}") };
                    match &chunk.body {
                        Some(body) => {
                            let items = source.items(body.clone());
                            self.read_items(inner, source, items, &folder.join(&name))?;
                        }
                        None => {
                            let flat = folder.join(format!("{name}.rs"));
                            let file = if flat.is_file() { flat } else { folder.join(&name).join("mod.rs") };
                            below.push((inner, file));
                        }
                    }
                }
                "impl" => module.impls.extend(read_impl(source, &rest, &chunk, features)),
                _ => {
                    let members = match (kind, &chunk.body) {
                        ("struct", Some(body)) => public_fields(source.members(body.clone())),
                        ("enum" | "union", Some(body)) => variants(source.members(body.clone())),
                        ("trait", Some(body)) => trait_items(source, body.clone()),
                        _ => Vec::new(),
                    };
                    let item = Item {
                        public: public || (kind == "macro_rules!" && chunk.attributes.contains("macro_export")),
                        head: shown_head(kind, &rest),
                        derives: derives(&chunk.attributes),
                        non_exhaustive: chunk.attributes.contains("#[non_exhaustive]"),
                        features,
                        members,
                    };
                    module.items.insert(name, item);
                }
            }
        }
        self.modules.insert(key, module);
        for (key, file) in below {
            ensure!(file.is_file(), "{} is a module without a file", file.display());
            self.read_file(key, &file)?;
        }
        Ok(())
    }

    /// Everything that can be named from outside, in the order of its path. `own` are the crates of this repository.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut exports: BTreeMap<Place, BTreeMap<String, String>> = BTreeMap::new();
        let mut modules: BTreeMap<String, String> = BTreeMap::new();
        let mut outside: BTreeMap<String, (String, String)> = BTreeMap::new();
        self.walk("", "", "", &mut exports, &mut modules, &mut outside);
        // The shortest path is the item's; the others are re-exports.
        let mut lines: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        let mut canonical: BTreeMap<Place, String> = BTreeMap::new();
        for (place, paths) in &exports {
            let Some(path) = paths.keys().min_by_key(|path| (path.matches("::").count(), path.len())) else { continue };
            canonical.insert(place.clone(), path.clone());
            for other in paths.keys().filter(|other| *other != path) {
                lines.entry(other.clone()).or_default().push(plain(format!("pub use {other} = {path}"), other));
            }
        }
        for (path, features) in &modules {
            lines.entry(path.clone()).or_default().push(plain(format!("pub mod {path}{features}"), path));
        }
        for (path, (target, features)) in &outside {
            lines.entry(path.clone()).or_default().push(plain(format!("pub use {path} = {target}{features}"), path));
        }
        for (place, path) in &canonical {
            let (module, name) = place;
            let item = &self.modules[module].items[name];
            let features = &exports[place][path];
            let mut own = vec![self.line(module, name, &item.shown(path, name), &item.head, features)];
            own.extend(item.members.iter().map(|member| {
                let last = member.split(|c: char| !is_word(c)).find(|word| !KEYWORDS.contains(word)).unwrap_or("");
                self.line(module, last, &format!("    {path}: {member}"), member, "")
            }));
            lines.entry(path.clone()).or_default().extend(own);
        }
        for (module, found) in self.modules.iter().flat_map(|(key, module)| module.impls.iter().map(move |i| (key, i)))
        {
            let Some(Target::Item(place)) = self.resolve(module, std::slice::from_ref(&found.for_type), 0) else {
                continue;
            };
            let Some(path) = canonical.get(&place) else { continue };
            let mut own = Vec::new();
            if let Some(of) = &found.of {
                let of_name = of.split('<').next().unwrap_or_default().rsplit("::").next().unwrap_or_default();
                let hidden = self.resolve(module, &of_name.split("::").map(str::to_owned).collect::<Vec<_>>(), 0);
                if matches!(hidden, Some(Target::Item(place)) if !canonical.contains_key(&place)) {
                    continue;
                }
                own.push(self.line(module, &place.1, &format!("    {}", found.head), &found.head, &found.features));
            }
            for (member, features) in &found.members {
                let name = member_name(member);
                own.push(self.line(module, &name, &format!("    {path}: {member}"), member, features));
            }
            lines.entry(path.clone()).or_default().extend(own);
        }
        let mut all = Vec::new();
        for (_, mut group) in lines {
            // The item first, then its members.
            group.sort_by(|a, b| (a.text.starts_with(' '), &a.text).cmp(&(b.text.starts_with(' '), &b.text)));
            all.extend(group);
        }
        all
    }

    /// Follows public modules and re-exports.
    fn walk(
        &self,
        module: &str,
        path: &str,
        features: &str,
        exports: &mut BTreeMap<Place, BTreeMap<String, String>>,
        modules: &mut BTreeMap<String, String>,
        outside: &mut BTreeMap<String, (String, String)>,
    ) {
        let Some(found) = self.modules.get(module) else { return };
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}::{name}") };
        for (name, item) in found.items.iter().filter(|(_, item)| item.public) {
            let features = join(features, &item.features);
            exports.entry((module.to_owned(), name.clone())).or_default().insert(below(name), features);
        }
        for (name, (_, own)) in found.children.iter().filter(|(_, (public, _))| *public) {
            let inner = if module.is_empty() { name.clone() } else { format!("{module}::{name}") };
            let features = join(features, own);
            if modules.insert(below(name), features.clone()).is_none() {
                self.walk(&inner, &below(name), &features, exports, modules, outside);
            }
        }
        for one in found.uses.iter().filter(|one| one.public) {
            let features = join(features, &one.features);
            match (self.resolve(module, &one.path, 0), &one.name) {
                (Some(Target::Item(place)), Some(name)) => {
                    let features = join(&features, &self.modules[&place.0].items[&place.1].features);
                    exports.entry(place).or_default().insert(below(name), features);
                }
                (Some(Target::Module(inner)), Some(name))
                    if modules.insert(below(name), features.clone()).is_none() =>
                {
                    self.walk(&inner, &below(name), &features, exports, modules, outside);
                }
                (Some(Target::Module(inner)), None) => self.walk(&inner, path, &features, exports, modules, outside),
                (Some(Target::Outside(target)), Some(name)) => {
                    outside.insert(below(name), (target, features));
                }
                _ => {}
            }
        }
    }

    fn resolve(&self, module: &str, path: &[String], depth: usize) -> Option<Target> {
        if depth > 12 {
            return None;
        }
        let first = path.first()?;
        let parent = || module.rsplit_once("::").map_or("", |(parent, _)| parent).to_owned();
        let mut target = match first.as_str() {
            "crate" => Target::Module(String::new()),
            "self" => Target::Module(module.to_owned()),
            "super" => Target::Module(parent()),
            name => match self.lookup(module, name, depth)? {
                Some(target) => target,
                None => return Some(Target::Outside(path.join("::"))),
            },
        };
        for name in &path[1..] {
            target = match target {
                Target::Module(inner) if name == "super" => {
                    Target::Module(inner.rsplit_once("::").map_or("", |(parent, _)| parent).to_owned())
                }
                Target::Module(inner) => self.lookup(&inner, name, depth)??,
                Target::Outside(outside) => Target::Outside(format!("{outside}::{name}")),
                // A variant or an associated item.
                Target::Item(_) => return None,
            };
        }
        Some(target)
    }

    /// Looks up a name in a module. Returns `Some(None)` if the module does not have the name.
    #[expect(clippy::option_option, reason = "too deep, or not there")]
    fn lookup(&self, module: &str, name: &str, depth: usize) -> Option<Option<Target>> {
        let found = self.modules.get(module)?;
        if found.items.contains_key(name) {
            return Some(Some(Target::Item((module.to_owned(), name.to_owned()))));
        }
        if found.children.contains_key(name) {
            let inner = if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") };
            return Some(Some(Target::Module(inner)));
        }
        for one in &found.uses {
            // `use a::b;` names `a` outside, unless the module has one.
            if one.name.as_deref() == Some(name) && one.path.first().is_none_or(|first| first != name) {
                return Some(Some(self.resolve(module, &one.path, depth + 1)?));
            }
        }
        for one in found.uses.iter().filter(|one| one.name.is_none()) {
            if let Some(Target::Module(inner)) = self.resolve(module, &one.path, depth + 1)
                && inner != module
                && let Some(Some(target)) = self.lookup(&inner, name, depth + 1)
            {
                return Some(Some(target));
            }
        }
        Some(None)
    }

    fn line(&self, module: &str, name: &str, shown: &str, text: &str, features: &str) -> Line {
        let mut foreign = BTreeSet::new();
        let bytes = text.as_bytes();
        for (at, word) in words(text) {
            let after = &text[at + word.len()..];
            let is_first = at == 0 || bytes[at - 1] != b':';
            // A variant or a function may be called as an imported type is.
            if word == name || word == "_" {
                continue;
            }
            if is_first && after.starts_with("::") && !word.starts_with(char::is_uppercase) {
                if let Some(Target::Outside(outside)) = self.resolve(module, &[word.to_owned()], 0) {
                    foreign.insert(outside.split("::").next().unwrap_or_default().to_owned());
                }
            } else if is_first
                && let Some(Some(Target::Outside(outside))) = self.lookup(module, word, 0)
                && outside.contains("::")
            {
                foreign.insert(outside.split("::").next().unwrap_or_default().to_owned());
            }
        }
        Line { text: format!("{shown}{features}"), name: name.to_owned(), foreign }
    }
}

impl Item {
    fn shown(&self, path: &str, name: &str) -> String {
        let mut text = self.head.replacen(name, path, 1);
        // A keyword may hold the name, as `struct` holds `s`.
        if let Some((keyword, rest)) = self.head.split_once(&format!(" {name}")) {
            text = format!("{keyword} {path}{rest}");
        }
        if !self.derives.is_empty() {
            text.push_str(&format!(" (derives {})", self.derives.join(", ")));
        }
        format!("pub {text}{}", if self.non_exhaustive { " #[non_exhaustive]" } else { "" })
    }
}

const KEYWORDS: [&str; 12] =
    ["", "pub", "fn", "const", "async", "type", "unsafe", "struct", "enum", "trait", "extern", "required"];

fn plain(text: String, path: &str) -> Line {
    let name = path.rsplit("::").next().unwrap_or_default().to_owned();
    Line { text, name, foreign: BTreeSet::new() }
}

fn member_name(member: &str) -> String {
    member.split(|c: char| !is_word(c)).find(|word| !KEYWORDS.contains(word)).unwrap_or_default().to_owned()
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words with their offsets.
pub(super) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split(|c: char| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

fn is_for_tests(attributes: &str) -> bool {
    ["cfg(test)", "cfg(all(test", "cfg(any(test"].iter().any(|cfg| attributes.contains(cfg))
}

/// ` [name]` for the features that an item needs.
fn features(attributes: &str) -> String {
    let mut features = String::new();
    for attribute in attributes.split("#[").filter(|attribute| attribute.starts_with("cfg(")) {
        for (at, _) in attribute.match_indices("feature = \"") {
            let name = attribute[at + 11..].split('"').next().unwrap_or_default();
            let not = if attribute[..at].ends_with("not(") { "not " } else { "" };
            features.push_str(&format!(" [{not}{name}]"));
        }
    }
    features
}

fn join(a: &str, b: &str) -> String {
    if a.contains(b) { a.to_owned() } else { format!("{a}{b}") }
}

fn derives(attributes: &str) -> Vec<String> {
    let mut derives: Vec<String> = attributes
        .split("#[derive(")
        .skip(1)
        .filter_map(|rest| rest.split(")]").next())
        .flat_map(|list| list.split(','))
        .map(|name| name.trim().rsplit("::").next().unwrap_or_default().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    derives.sort();
    derives
}

/// The kind of an item and its name, from its text without visibility.
fn kind_and_name(head: &str) -> Option<(&'static str, String)> {
    let mut words = head.split(|c: char| !(is_word(c) || c == '!')).filter(|word| !word.is_empty()).peekable();
    let mut first = words.next()?;
    loop {
        let name = |words: &mut dyn Iterator<Item = &str>| words.next().unwrap_or_default().to_owned();
        return Some(match first {
            "use" => ("use", String::new()),
            "impl" => ("impl", String::new()),
            "mod" => ("mod", name(&mut words)),
            "struct" => ("struct", name(&mut words)),
            "enum" => ("enum", name(&mut words)),
            "union" => ("union", name(&mut words)),
            "trait" => ("trait", name(&mut words)),
            "fn" => ("fn", name(&mut words)),
            "type" => ("type", name(&mut words)),
            "static" => ("static", name(&mut words)),
            "macro_rules!" => ("macro_rules!", name(&mut words)),
            "const" if !matches!(words.peek(), Some(&("fn" | "unsafe" | "async"))) => ("const", name(&mut words)),
            "const" | "async" | "unsafe" | "extern" => {
                first = words.next()?;
                continue;
            }
            _ => return None,
        });
    }
}

/// The head as the listing has it: without values, private fields of tuples, and the brackets of a body.
fn shown_head(kind: &str, head: &str) -> String {
    match kind {
        "const" | "static" => head.split(" =").next().unwrap_or(head).to_owned(),
        "struct" => match (head.find('('), head.rfind(')')) {
            (Some(open), Some(close)) if open < close && !head[..open].contains(" where ") => {
                let source = Source::new(head[open + 1..close].to_owned());
                let members = source.members(source.whole());
                let fields: Vec<&str> = members
                    .iter()
                    .map(|(_, field)| if field.starts_with("pub ") { field.as_str() } else { "_" })
                    .collect();
                format!("{}({}){}", &head[..open], fields.join(", "), &head[close + 1..])
            }
            _ => head.to_owned(),
        },
        _ => head.to_owned(),
    }
}

fn public_fields(members: Vec<(String, String)>) -> Vec<String> {
    let public = members.into_iter().filter(|(attributes, _)| !is_for_tests(attributes));
    public
        .filter_map(|(attributes, field)| Some(format!("{}{}", field.strip_prefix("pub ")?, features(&attributes))))
        .collect()
}

fn variants(members: Vec<(String, String)>) -> Vec<String> {
    let shown = |(attributes, variant): (String, String)| {
        let non_exhaustive = if attributes.contains("#[non_exhaustive]") { " #[non_exhaustive]" } else { "" };
        // Attributes of fields are no part of the surface.
        let variant = strip_attributes(&variant);
        format!("{variant}{non_exhaustive}{}", features(&attributes))
    };
    members.into_iter().filter(|(attributes, _)| !is_for_tests(attributes)).map(shown).collect()
}

fn strip_attributes(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("#[") {
        out.push_str(&rest[..at]);
        rest = rest[at..].split_once(']').map_or("", |(_, after)| after.trim_start());
    }
    one_line(&format!("{out}{rest}"))
}

fn trait_items(source: &Source, body: std::ops::Range<usize>) -> Vec<String> {
    let mut items = Vec::new();
    for chunk in source.items(body) {
        if is_for_tests(&chunk.attributes) {
            continue;
        }
        let head = source.head(&chunk);
        let provided = chunk.body.is_some() || head.contains(" = ");
        items.push(format!("{}{head}", if provided { "" } else { "required " }));
    }
    items
}

fn read_impl(source: &Source, head: &str, chunk: &Chunk, features_of: String) -> Option<Impl> {
    let (_, after) = split_generics(head.strip_prefix("impl")?);
    let bare = after.split(" where ").next().unwrap_or(after).trim();
    let (of, for_type) = match bare.split_once(" for ") {
        Some((of, for_type)) => (Some(of.trim().to_owned()), for_type),
        None => (None, bare),
    };
    let for_type = for_type.trim_start_matches(['&', '(']).split(['<', ' ']).next()?.rsplit("::").next()?.to_owned();
    let mut members = Vec::new();
    if of.is_none() {
        for member in source.items(chunk.body.clone()?) {
            let text = source.head(&member);
            if let Some(text) = text.strip_prefix("pub ")
                && !is_for_tests(&member.attributes)
            {
                let text = if text.starts_with("const ") && !text.contains("fn ") {
                    text.split(" =").next().unwrap_or(text)
                } else {
                    text
                };
                members.push((text.to_owned(), join(&features_of, &features(&member.attributes))));
            }
        }
    }
    Some(Impl { of, head: head.to_owned(), for_type, features: features_of, members })
}

/// Splits `<..>` from the rest.
fn split_generics(text: &str) -> (&str, &str) {
    if !text.starts_with('<') {
        return ("", text);
    }
    let mut depth = 0_i32;
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if at > 0 && !matches!(bytes[at - 1], b'-' | b'=') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.split_at(at + 1);
        }
    }
    ("", text)
}

/// Splits a use tree into paths and their names; `None` is a glob.
fn expand(tree: &str, prefix: &[String], each: &mut dyn FnMut(Vec<String>, Option<String>)) {
    let tree = tree.trim().trim_start_matches("::");
    if let Some((path, rest)) = tree.split_once('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(path.split("::").filter(|name| !name.trim().is_empty()).map(|name| name.trim().to_owned()));
        let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
        let source = Source::new(inner.to_owned());
        for (_, one) in source.members(source.whole()) {
            expand(&one, &prefix, each);
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut whole = prefix.to_vec();
    whole.extend(path.split("::").filter(|name| !name.is_empty()).map(|name| name.trim().to_owned()));
    if whole.last().is_some_and(|last| last == "*") {
        whole.pop();
        return each(whole, None);
    }
    if whole.last().is_some_and(|last| last == "self") {
        whole.pop();
    }
    let name = alias.or_else(|| whole.last().cloned());
    each(whole, name);
}
