//! [`Suite`]: the table of cases, from YAML files. `cases/README.md` documents the format.

mod bundled;
mod reader;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use self::reader::Members;
pub(crate) use self::step::{
    BodyEncoding, EventsStep, Expectation, ExpectedEvent, RequestStep, STEP_WAIT, Step, Via, WatchStep, WriteStep,
};

/// The version of the format that this crate reads.
pub const FORMAT_VERSION: u64 = 1;

/// The names of the files that contain no cases.
const CAPABILITIES_FILE: &str = "capabilities.yaml";
const RESOURCES_FILE: &str = "resources.yaml";

/// The cases, the capabilities that they belong to, the profiles, and the resources that they use.
#[derive(Clone, Debug)]
pub struct Suite {
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) resources: BTreeMap<String, TestResource>,
    pub(crate) cases: Vec<Case>,
}

/// A part of the API that a server may lack.
#[derive(Clone, Debug)]
pub struct Capability {
    pub(crate) id: String,
    pub(crate) title: String,
    /// The steps that test whether the server supports the capability; empty if every server supports it.
    pub(crate) probe: Vec<Step>,
}

impl Capability {
    /// The short name, as in `--only`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The title in reports.
    pub fn title(&self) -> &str {
        &self.title
    }
}

/// A named set of capabilities that a kind of server is expected to support.
#[derive(Clone, Debug)]
pub struct Profile {
    pub(crate) id: String,
    pub(crate) title: String,
    /// The ids of the capabilities; empty for all capabilities.
    pub(crate) capabilities: Vec<String>,
}

impl Profile {
    /// The short name, as in `--profile`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The title in reports.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Whether the profile has this capability.
    pub fn includes(&self, capability: &str) -> bool {
        self.capabilities.is_empty() || self.capabilities.iter().any(|id| id == capability)
    }
}

/// A resource on which cases run.
#[derive(Clone, Debug)]
pub(crate) struct TestResource {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    /// The other fields of a new object.
    pub(crate) template: Value,
    /// The CustomResourceDefinition that is created before the first case, if the resource needs one.
    pub(crate) definition: Option<Value>,
}

/// The importance of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The documentation of the API promises the behavior, or clients depend on it.
    Must,
    /// A visible behavior of kube-apiserver that is not promised, such as a text, a code or an order.
    Detail,
}

impl Level {
    /// `must` or `detail`.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Must => "must",
            Level::Detail => "detail",
        }
    }
}

/// One case of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) capability: String,
    pub(crate) rule: String,
    pub(crate) source: String,
    pub(crate) level: Level,
    pub(crate) resource: String,
    pub(crate) variables: Vec<(String, Value)>,
    pub(crate) requires: Vec<String>,
    pub(crate) needs: Vec<String>,
    pub(crate) alone: bool,
    pub(crate) steps: Vec<Step>,
}

impl Case {
    /// The id: `capability/case`, followed by `/resource` and `/variant` if the case has several of them.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The title: the subject, the condition and the expectation.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The capability that the case belongs to.
    pub fn capability(&self) -> &str {
        &self.capability
    }

    /// The rule that the case tests.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The source of the rule, such as a KEP or a page of the API reference.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The importance of the case.
    pub fn level(&self) -> Level {
        self.level
    }
}

/// The error of invalid case files. The text names the file, the case and the step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SuiteError(String);

impl Suite {
    /// Parses the cases that are compiled into this crate.
    ///
    /// # Errors
    /// Never: a test of this crate parses the same files.
    pub fn bundled() -> Result<Self, SuiteError> {
        Suite::parse(bundled::FILES)
    }

    /// Reads the cases of a directory: `capabilities.yaml`, `resources.yaml`, and files of cases.
    ///
    /// # Errors
    /// A file cannot be read, or does not have the format of `cases/README.md`.
    pub fn read(directory: &Path) -> Result<Self, SuiteError> {
        let unreadable =
            |path: &Path, error: std::io::Error| SuiteError(format!("cannot read {}: {error}", path.display()));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(|error| unreadable(directory, error))? {
            let path = entry.map_err(|error| unreadable(directory, error))?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
                files.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text));
            }
        }
        files.sort();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        Suite::parse(&files)
    }

    /// Parses files: name and text.
    ///
    /// # Errors
    /// [`SuiteError`].
    pub fn parse(files: &[(&str, &str)]) -> Result<Self, SuiteError> {
        let mut suite =
            Suite { capabilities: Vec::new(), profiles: Vec::new(), resources: BTreeMap::new(), cases: Vec::new() };
        let mut documents = Vec::new();
        for (name, text) in files {
            let document: Value = yaml_serde::from_str(text).map_err(|error| SuiteError(format!("{name}: {error}")))?;
            match *name {
                CAPABILITIES_FILE => suite.read_capabilities(&document).map_err(SuiteError)?,
                RESOURCES_FILE => suite.read_resources(&document).map_err(SuiteError)?,
                name => documents.push((name, document)),
            }
        }
        for (name, document) in documents {
            suite.read_cases(name, &document).map_err(SuiteError)?;
        }
        suite.check().map_err(SuiteError)?;
        Ok(suite)
    }

    /// The cases in the order of the files.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// The capabilities in the order of reports.
    pub fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    /// The profiles.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The profile of this name.
    pub fn profile(&self, id: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    fn read_capabilities(&mut self, document: &Value) -> Result<(), String> {
        let mut members = Members::new(document, CAPABILITIES_FILE)?;
        version(&mut members)?;
        for value in members.list("capabilities")? {
            let mut one = Members::new(value, format!("{CAPABILITIES_FILE}, a capability"))?;
            let id = one.required_text("id")?;
            let title = one.required_text("title")?;
            let probe = Step::read_all(one.list("probe")?, &format!("{CAPABILITIES_FILE}, {id}"))?;
            one.finish()?;
            self.capabilities.push(Capability { id, title, probe });
        }
        for value in members.list("profiles")? {
            let mut one = Members::new(value, format!("{CAPABILITIES_FILE}, a profile"))?;
            let (id, title) = (one.required_text("id")?, one.required_text("title")?);
            let capabilities = one.texts("capabilities")?;
            one.finish()?;
            self.profiles.push(Profile { id, title, capabilities });
        }
        members.finish()
    }

    fn read_resources(&mut self, document: &Value) -> Result<(), String> {
        let mut members = Members::new(document, RESOURCES_FILE)?;
        version(&mut members)?;
        for (name, value) in members.object("resources")?.into_iter().flatten() {
            let mut one = Members::new(value, format!("{RESOURCES_FILE}, {name}"))?;
            let resource = TestResource {
                api_version: one.required_text("apiVersion")?,
                kind: one.required_text("kind")?,
                plural: one.required_text("plural")?,
                template: one.take("template").cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new())),
                definition: one.take("definition").cloned(),
            };
            one.finish()?;
            self.resources.insert(name.clone(), resource);
        }
        members.finish()
    }

    fn read_cases(&mut self, file: &str, document: &Value) -> Result<(), String> {
        let mut members = Members::new(document, file)?;
        version(&mut members)?;
        let capability = members.required_text("capability")?;
        for value in members.list("cases")? {
            self.read_case(file, &capability, value)?;
        }
        members.finish()
    }

    /// Reads one case, and expands it over its resources and variants.
    fn read_case(&mut self, file: &str, capability: &str, value: &Value) -> Result<(), String> {
        let mut members = Members::new(value, format!("{file}, a case"))?;
        let id = members.required_text("id")?;
        let place = format!("{file}, {id}");
        let mut members = Members::new(value, place.clone())?;
        members.required_text("id")?;
        let is_id = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !is_id(&id) {
            return Err(format!("{place}: the id has other characters than a-z, 0-9 and -"));
        }
        let level = match members.text("level")?.as_deref() {
            None | Some("must") => Level::Must,
            Some("detail") => Level::Detail,
            Some(other) => return Err(members.error(format!("{other} is neither must nor detail"))),
        };
        let case = Case {
            id: format!("{capability}/{id}"),
            title: members.required_text("title")?,
            capability: capability.to_owned(),
            rule: members.required_text("rule")?,
            source: members.required_text("source")?,
            level,
            resource: "configmaps".to_owned(),
            variables: Vec::new(),
            requires: members.texts("requires")?,
            needs: members.texts("needs")?,
            alone: members.flag("alone")?,
            steps: Step::read_all(members.list("steps")?, &place)?,
        };
        let resources = members.texts("resources")?;
        let variants = members.object("variants")?;
        members.finish()?;
        if case.steps.is_empty() {
            return Err(format!("{place}: has no steps"));
        }
        let resources = if resources.is_empty() { vec![None] } else { resources.into_iter().map(Some).collect() };
        for resource in resources {
            let mut one = case.clone();
            if let Some(resource) = resource {
                one.id = format!("{}/{resource}", one.id);
                one.resource = resource;
            }
            let Some(variants) = variants else {
                self.cases.push(one);
                continue;
            };
            for (name, variables) in variants {
                let variables = variables.as_object().ok_or_else(|| format!("{place}: {name} is not a mapping"))?;
                let mut variant = one.clone();
                variant.id = format!("{}/{name}", one.id);
                variant.variables = variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                self.cases.push(variant);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let known: BTreeSet<&str> = self.capabilities.iter().map(|capability| capability.id.as_str()).collect();
        let mut ids = BTreeSet::new();
        for case in &self.cases {
            if !ids.insert(case.id.as_str()) {
                return Err(format!("two cases have the id {}", case.id));
            }
            for capability in case.requires.iter().chain([&case.capability]) {
                if !known.contains(capability.as_str()) {
                    return Err(format!("{}: the capability {capability} is not known", case.id));
                }
            }
            if !self.resources.contains_key(&case.resource) {
                return Err(format!("{}: the resource {} is not known", case.id, case.resource));
            }
            if let Some(need) = case.needs.iter().find(|need| !matches!(need.as_str(), "compact" | "restart")) {
                return Err(format!("{}: needs {need}, which is neither compact nor restart", case.id));
            }
        }
        for profile in &self.profiles {
            if let Some(unknown) = profile.capabilities.iter().find(|id| !known.contains(id.as_str())) {
                return Err(format!("the profile {} names {unknown}, which is no capability", profile.id));
            }
        }
        Ok(())
    }
}

fn version(members: &mut Members<'_>) -> Result<(), String> {
    match members.number("format")? {
        Some(FORMAT_VERSION) => Ok(()),
        _ => Err(members.error(format!("format is not {FORMAT_VERSION}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPABILITIES: (&str, &str) = (
        "capabilities.yaml",
        "format: 1\ncapabilities: [{id: core, title: Core}]\nprofiles: [{id: all, title: All}]\n",
    );
    const RESOURCES: (&str, &str) = (
        "resources.yaml",
        "format: 1\nresources: {configmaps: {apiVersion: v1, kind: ConfigMap, plural: configmaps}}\n",
    );

    fn parse(cases: &str) -> Result<Suite, String> {
        let text = format!("format: 1\ncapability: core\ncases:\n{cases}");
        Suite::parse(&[CAPABILITIES, RESOURCES, ("core.yaml", &text)]).map_err(|error| error.to_string())
    }

    const HEAD: &str = "- {id: a, title: T, rule: R, source: S";

    #[test]
    fn case_is_expanded_over_resources_and_variants() {
        let suite = parse(&format!(
            "{HEAD}, resources: [configmaps], variants: {{x: {{v: 1}}, y: {{v: 2}}}}, steps: [{{list: {{}}}}]}}"
        ));
        let suite = suite.unwrap();
        let ids: Vec<&str> = suite.cases().iter().map(Case::id).collect();
        assert_eq!(ids, ["core/a/configmaps/x", "core/a/configmaps/y"]);
    }

    #[test]
    fn invalid_case_is_rejected_with_its_file_case_and_step() {
        #[track_caller]
        fn check(rest: &str, expected: &str) {
            let error = parse(&format!("{HEAD}{rest}}}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        check(", steps: []", "core.yaml, a: has no steps");
        check(", steps: [{lst: {}}]", "core.yaml, a, step 1: has none of request");
        check(", steps: [{list: {}, foo: 1}]", "step 1: \"foo\" is not a known member");
        check(", steps: [{list: {}, expect: {body: {kind: {$equals: x}}}}]", "$equals is no operator");
        check(", steps: [{list: {}, expect: {status: ok}}]", "status is neither");
        check(", steps: [{list: {}, get: a}]", "has both list and get");
        check(", steps: [{events: w, expect: [CHANGED a]}]", "CHANGED is no type of events");
        check(", resources: [pots], steps: [{list: {}}]", "the resource pots is not known");
        check(", requires: [magic], steps: [{list: {}}]", "the capability magic is not known");
        check(", needs: [luck], steps: [{list: {}}]", "needs luck");
        check(", level: high, steps: [{list: {}}]", "neither must nor detail");
    }

    #[test]
    fn two_cases_with_the_same_id_are_rejected() {
        let case = format!("{HEAD}, steps: [{{list: {{}}}}]}}\n");
        assert_eq!(parse(&format!("{case}{case}")).unwrap_err(), "two cases have the id core/a");
    }

    #[test]
    fn every_bundled_file_is_read_and_valid() {
        let suite = Suite::bundled().expect("the bundled cases are valid");
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let read = Suite::read(&directory).expect("the files are valid");
        assert_eq!(read.cases().len(), suite.cases().len(), "src/suite/bundled.rs lists every file of cases/");
        assert!(suite.cases().len() >= 300, "{} cases", suite.cases().len());
        for capability in suite.capabilities() {
            let of_it = suite.cases().iter().filter(|case| case.capability() == capability.id());
            assert!(of_it.count() > 0, "{} has no case", capability.id());
        }
    }
}
