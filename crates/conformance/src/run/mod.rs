//! [`judge`]: runs cases against a server.
//!
//! ```text
//!  probes of the capabilities ─▶ cases, several at once, each in a namespace of its own ─▶ cases that disturb others,
//!  one by one ─▶ Report
//! ```

mod context;
mod environment;
mod failure;
mod watches;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

use self::context::{Context, Created};
pub use self::environment::{ActionFuture, Actions, Environment};
use self::failure::Stop;
use crate::report::{CaseResult, Outcome, Report};
use crate::suite::{Case, Step, Suite, TestResource};
use crate::transport::{Exchange, HttpVersion, Outgoing, Session, Target, decode};
use crate::value::template::Variables;

/// The time limit of one case, with its setup.
const CASE_LIMIT: Duration = Duration::from_secs(180);
/// The time limit of the removal of a case's objects.
const CLEANUP_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of a request that is not a step of a case.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// The time limit from the creation of a CustomResourceDefinition until its resource is served.
const DEFINITION_WAIT: Duration = Duration::from_secs(60);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The number of cases that run concurrently.
    pub jobs: usize,
    /// Runs only the cases whose id contains one of these texts. Empty for all cases.
    pub only: Vec<String>,
    /// The id of the profile in the report.
    pub profile: String,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions { jobs: 8, only: Vec::new(), profile: "kubernetes".to_owned() }
    }
}

/// The error of a run that cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The suite has no profile of this name.
    #[error("there is no profile {name:?}; there are: {}", known.join(", "))]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The existing profiles.
        known: Vec<String>,
    },
    /// No case has this text of [`RunOptions::only`] in its id.
    #[error("no case contains {0:?} in its id")]
    NoCase(String),
    /// The server does not answer.
    #[error("{url} does not answer: {why}")]
    Unreachable {
        /// The server's URL.
        url: String,
        /// The error.
        why: String,
    },
}

/// Selects the cases of a run.
///
/// # Errors
/// [`RunError::NoCase`] if one of the texts selects no case.
pub fn select<'a>(suite: &'a Suite, only: &[String]) -> Result<Vec<&'a Case>, RunError> {
    let selects = |case: &Case, text: &str| case.id().contains(text);
    if let Some(text) = only.iter().find(|text| !suite.cases().iter().any(|case| selects(case, text))) {
        return Err(RunError::NoCase(text.clone()));
    }
    let chosen = |case: &&Case| only.is_empty() || only.iter().any(|text| selects(case, text));
    Ok(suite.cases().iter().filter(chosen).collect())
}

/// The state that all cases of a run share.
struct Shared {
    suite: Suite,
    target: Arc<Target>,
    environment: Arc<dyn Environment>,
    /// The random id of the run, which is part of the names of its namespaces.
    run: String,
    /// The capabilities that the server does not support, each with the reason.
    unsupported: HashMap<String, String>,
    /// The CustomResourceDefinitions of the cases, by resource. Each is created once; an error is kept for later cases.
    definitions: BTreeMap<String, OnceCell<Result<(), Stop>>>,
    created: Created,
}

/// Runs the cases of a suite against a server, and calls `progress` after each.
///
/// # Errors
/// [`RunError`] if the run cannot begin. Failed cases are part of the report and not an error.
pub async fn judge(
    suite: &Suite,
    target: Target,
    environment: Arc<dyn Environment>,
    options: &RunOptions,
    mut progress: impl FnMut(&CaseResult),
) -> Result<Report, RunError> {
    let begun = Instant::now();
    let profile = suite.profile(&options.profile).ok_or_else(|| RunError::UnknownProfile {
        name: options.profile.clone(),
        known: suite.profiles().iter().map(|profile| profile.id().to_owned()).collect(),
    })?;
    let cases: Vec<Case> = select(suite, &options.only)?.into_iter().cloned().collect();
    let target = Arc::new(target);
    let server = server_version(&target).await?;
    let definitions = suite.resources.iter().filter(|(_, resource)| resource.definition.is_some());
    let mut shared = Shared {
        suite: suite.clone(),
        target: target.clone(),
        environment,
        run: run_id(),
        unsupported: HashMap::new(),
        definitions: definitions.map(|(name, _)| (name.clone(), OnceCell::new())).collect(),
        created: Created::default(),
    };
    shared.unsupported = probe(&shared).await;
    let shared = Arc::new(shared);
    let mut results: Vec<Option<CaseResult>> = vec![None; cases.len()];
    let alone = |case: &Case| case.alone || !case.needs.is_empty();
    let slots = Arc::new(Semaphore::new(options.jobs.max(1)));
    let mut running = JoinSet::new();
    for (number, case) in cases.iter().enumerate().filter(|(_, case)| !alone(case)) {
        let (shared, slots, case) = (shared.clone(), slots.clone(), case.clone());
        running.spawn(async move {
            // The semaphore is never closed.
            let _slot = slots.acquire_owned().await;
            (number, run_case(&shared, &case, number).await)
        });
    }
    while let Some(ended) = running.join_next().await {
        // A panic of a case would be a defect of the kit.
        let (number, result) = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        progress(&result);
        results[number] = Some(result);
    }
    for (number, case) in cases.iter().enumerate().filter(|(_, case)| alone(case)) {
        let result = run_case(&shared, case, number).await;
        progress(&result);
        results[number] = Some(result);
    }
    remove_created(&Session::new(target.clone()), &shared.created).await;
    Ok(Report {
        server: target.url(),
        version: server,
        http: target.version.as_str().to_owned(),
        profile: profile.clone(),
        capabilities: suite.capabilities().to_vec(),
        results: results.into_iter().flatten().collect(),
        time: begun.elapsed(),
    })
}

/// Creates a random id of six lower-case letters, which names of namespaces may contain.
fn run_id() -> String {
    (0..6).map(|_| char::from(b'a' + rand::random_range(0..26_u8))).collect()
}

/// Reads the `gitVersion` from the server's `/version`. The result is empty if the response has none.
async fn server_version(target: &Arc<Target>) -> Result<String, RunError> {
    let outgoing = get("/version");
    let answer = Session::new(target.clone()).exchange(&outgoing, HttpVersion::Any, REQUEST_LIMIT).await;
    let answer = answer.map_err(|error| RunError::Unreachable { url: target.url(), why: format!("{error:?}") })?;
    let document = decode(&answer.headers, &answer.body).ok().flatten();
    let version = document.as_ref().and_then(|document| document["gitVersion"].as_str());
    Ok(version.unwrap_or_default().to_owned())
}

fn get(path: &str) -> Outgoing {
    let accept = ("accept".to_owned(), "application/json".to_owned());
    Outgoing { method: "GET".to_owned(), path: path.to_owned(), headers: vec![accept], body: Bytes::new() }
}

/// Runs the probes. Returns the capabilities that the server does not support, with the reasons.
async fn probe(shared: &Shared) -> HashMap<String, String> {
    let mut unsupported = HashMap::new();
    for (number, capability) in shared.suite.capabilities().iter().enumerate() {
        if capability.probe.is_empty() {
            continue;
        }
        let resource = shared.suite.resources.get("configmaps").cloned();
        let Some(resource) = resource else { continue };
        let outcome = run_steps(shared, &capability.probe, &resource, &[], &format!("p{number}")).await;
        // A probe that fails tells nothing. The cases then say what is wrong.
        if let Err(Stop::Unsupported(why)) = outcome {
            unsupported.insert(capability.id().to_owned(), why);
        }
    }
    unsupported
}

async fn run_case(shared: &Shared, case: &Case, number: usize) -> CaseResult {
    let begun = Instant::now();
    let lacking = case.requires.iter().chain([&case.capability]).find_map(|id| shared.unsupported.get(id));
    let ended = match lacking {
        Some(why) => Err(Stop::Unsupported(why.clone())),
        None => run_with_resource(shared, case, number).await,
    };
    let outcome = match ended {
        Ok(()) => Outcome::Passed,
        Err(Stop::Unsupported(why)) => Outcome::Unsupported { why },
        Err(Stop::Skipped(why)) => Outcome::Skipped { why },
        Err(Stop::Failed(failure)) => {
            Outcome::Failed { step: failure.step, why: failure.why, exchange: failure.exchange }
        }
    };
    CaseResult {
        id: case.id().to_owned(),
        title: case.title().to_owned(),
        capability: case.capability().to_owned(),
        rule: case.rule().to_owned(),
        source: case.source().to_owned(),
        level: case.level(),
        outcome,
        time: begun.elapsed(),
    }
}

async fn run_with_resource(shared: &Shared, case: &Case, number: usize) -> Result<(), Stop> {
    let Some(resource) = shared.suite.resources.get(&case.resource) else {
        return Err(Stop::failed(format!("the resource {} is not known", case.resource)));
    };
    if let Some(cell) = shared.definitions.get(&case.resource) {
        cell.get_or_init(|| define(shared, resource)).await.clone()?;
    }
    run_steps(shared, &case.steps, resource, &case.variables, &number.to_string()).await
}

/// Runs steps in a new namespace, and then removes the created objects.
async fn run_steps(
    shared: &Shared,
    steps: &[Step],
    resource: &TestResource,
    variables: &[(String, Value)],
    suffix: &str,
) -> Result<(), Stop> {
    let session = Arc::new(Session::new(shared.target.clone()));
    let namespace = format!("conformance-{}-{suffix}", shared.run);
    let mut known = shared.variables(resource, &namespace).map_err(Stop::failed)?;
    for (name, value) in variables {
        let value = known.value(value).map_err(Stop::failed)?;
        known.set(name.clone(), value);
    }
    let created = Created::default();
    let mut context = Context {
        session: session.clone(),
        environment: shared.environment.clone(),
        resource: Arc::new(resource.clone()),
        variables: known,
        created: created.clone(),
        watches: HashMap::new(),
    };
    let steps = async {
        create_namespace(&session, &namespace).await?;
        context.run(steps).await
    };
    let ended = match tokio::time::timeout(CASE_LIMIT, steps).await {
        Ok(ended) => ended,
        Err(_) => Err(Stop::failed(format!("the case takes more than {} s", CASE_LIMIT.as_secs()))),
    };
    drop(context);
    let cleanup = async {
        remove_created(&session, &created).await;
        let delete = Outgoing { method: "DELETE".to_owned(), ..get(&format!("/api/v1/namespaces/{namespace}")) };
        let _ = session.exchange(&delete, HttpVersion::Any, REQUEST_LIMIT).await;
    };
    let _ = tokio::time::timeout(CLEANUP_LIMIT, cleanup).await;
    ended
}

impl Shared {
    /// The variables that every case has.
    fn variables(&self, resource: &TestResource, namespace: &str) -> Result<Variables, String> {
        let mut variables = Variables::default();
        variables.set("ns", namespace);
        variables.set("run", self.run.as_str());
        variables.set("crdGroup", format!("{}.conformance.example.com", self.run));
        let api_version = variables.text(&resource.api_version)?;
        let (root, group) = match api_version.split_once('/') {
            Some((group, _)) => (format!("/apis/{api_version}"), group),
            None => (format!("/api/{api_version}"), ""),
        };
        variables.set("root", root.as_str());
        variables.set("group", group);
        variables.set("apiVersion", api_version.as_str());
        variables.set("kind", resource.kind.as_str());
        variables.set("plural", resource.plural.as_str());
        // The name of the resource in texts, as Go's GroupResource prints it.
        let qualified = if group.is_empty() { resource.plural.clone() } else { format!("{}.{group}", resource.plural) };
        variables.set("resource", qualified);
        variables.set("all", format!("{root}/{}", resource.plural));
        variables.set("collection", format!("{root}/namespaces/{namespace}/{}", resource.plural));
        Ok(variables)
    }
}

/// Creates the namespace of a case. An error response is ignored, because some servers need no namespace objects. If
/// the namespace is missing, the steps of the case fail.
async fn create_namespace(session: &Session, name: &str) -> Result<(), Stop> {
    let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    session.exchange(&post("/api/v1/namespaces", &body), HttpVersion::Any, REQUEST_LIMIT).await?;
    Ok(())
}

fn post(path: &str, body: &Value) -> Outgoing {
    let content_type = ("content-type".to_owned(), "application/json".to_owned());
    let mut outgoing = get(path);
    outgoing.headers.push(content_type);
    Outgoing { method: "POST".to_owned(), body: body.to_string().into(), ..outgoing }
}

/// Creates the definition of a custom resource, and waits until the resource is served.
async fn define(shared: &Shared, resource: &TestResource) -> Result<(), Stop> {
    let session = Session::new(shared.target.clone());
    let variables = shared.variables(resource, "default").map_err(Stop::failed)?;
    let definition = variables.value(resource.definition.as_ref().unwrap_or(&Value::Null)).map_err(Stop::failed)?;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let answer = session.exchange(&post(definitions, &definition), HttpVersion::Any, REQUEST_LIMIT).await?;
    match answer.status {
        200..=202 => {}
        404 | 405 | 501 => return Err(Stop::Unsupported("the server has no CustomResourceDefinitions".to_owned())),
        code => return Err(Stop::failed(unserved(&format!("its definition gets {code}"), &answer))),
    }
    let created = context::CreatedObject {
        collection: definitions.to_owned(),
        name: definition["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        has_finalizers: false,
    };
    shared.created.lock().unwrap_or_else(PoisonError::into_inner).push(created);
    let list = get(&variables.text("{{collection}}?limit=1").map_err(Stop::failed)?);
    let deadline = Instant::now() + DEFINITION_WAIT;
    loop {
        let answer = session.exchange(&list, HttpVersion::Any, REQUEST_LIMIT).await?;
        if answer.status == 200 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Stop::failed(unserved("it is not served in time", &answer)));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn unserved(what: &str, answer: &Exchange) -> String {
    format!("the custom resource of the cases: {what}: {}", String::from_utf8_lossy(&answer.body).trim())
}

/// Removes objects that cases created. Errors are ignored, because the tested server may be faulty.
async fn remove_created(session: &Session, created: &Mutex<Vec<context::CreatedObject>>) {
    let created = std::mem::take(&mut *created.lock().unwrap_or_else(PoisonError::into_inner));
    let mut collections: Vec<String> = Vec::new();
    for object in created.iter().rev() {
        let path = format!("{}/{}", object.collection, object.name);
        if object.has_finalizers {
            let body = json!({ "metadata": { "finalizers": null } });
            let mut patch = Outgoing { method: "PATCH".to_owned(), ..post(&path, &body) };
            if let Some((_, value)) = patch.headers.iter_mut().find(|(name, _)| name == "content-type") {
                *value = "application/merge-patch+json".to_owned();
            }
            let _ = session.exchange(&patch, HttpVersion::Any, REQUEST_LIMIT).await;
        }
        if object.collection.contains("/namespaces/") {
            if !collections.contains(&object.collection) {
                collections.push(object.collection.clone());
            }
            continue;
        }
        let delete = Outgoing { method: "DELETE".to_owned(), ..get(&path) };
        let _ = session.exchange(&delete, HttpVersion::Any, REQUEST_LIMIT).await;
    }
    for collection in collections {
        let grace = "?gracePeriodSeconds=0";
        let delete = Outgoing { method: "DELETE".to_owned(), ..get(&format!("{collection}{grace}")) };
        let _ = session.exchange(&delete, HttpVersion::Any, REQUEST_LIMIT).await;
    }
}
