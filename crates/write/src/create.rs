//! Carries out POST: creates an object.

use listwatch_meta::Status;
use listwatch_meta::status::reason;
use listwatch_validation::names;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

use super::action::{Action, ActionFuture};
use super::decode::{Decoded, decode_body};
use super::options::Options;
use super::pipeline::{Absent, Base, Write};
use super::request::{WriteRequest, WriteResponse};

/// Maximum number of attempts to generate a name from `generateName` (`maxNameGenerationCreateAttempts`).
const GENERATED_NAMES_MAX: usize = 8;

/// The action for a POST to a resource.
pub(super) struct Create;

impl Action for Create {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(create(write, request))
    }
}

/// Creates the object in the body of the request.
///
/// # Errors
/// The [`Status`] for the client, such as 409 when the object exists.
async fn create(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let options = Options::parse("CreateOptions", request.query)?;
    let decode = || {
        let mut decoded = decode_body(write.registry, resource, request, options.field_validation)?;
        meta::wipe_system_fields(metadata_mut(&mut decoded.object));
        Ok::<_, Status>(decoded)
    };
    let Decoded { object, warnings } = decode()?;
    let given = meta::text(metadata(&object), "name").to_owned();
    let base = meta::text(metadata(&object), "generateName").to_owned();
    let generates = given.is_empty() && (!base.is_empty() || resource.rules.uuid_names);
    let write = Write { name: &given, dry_run: options.dry_run, ..*write };
    let mut attempts = if generates { GENERATED_NAMES_MAX } else { 1 };
    // The first attempt takes the tree. A retry after a name collision or a conflict is rare and decodes the body
    // again.
    let mut first = Some(object);
    loop {
        attempts -= 1;
        let name = match (generates, &*base) {
            (false, _) => given.clone(),
            (true, "") => uuid::Uuid::new_v4().to_string(),
            (true, base) => names::generate(base, |below| rand::random_range(0..below)),
        };
        let absent =
            Absent::Post { generated_name: generates.then_some(name.as_str()), has_generate_name: !base.is_empty() };
        let mut next = || first.take().map_or_else(|| decode().map(|decoded| decoded.object), Ok);
        let key = match resource.key(request.namespace, &name) {
            Ok(key) => key,
            Err(status) => {
                // Validation reports every error of the object, including an invalid name.
                write.check_new(absent, next()?).await?;
                return Err(status);
            }
        };
        match write.run(&key, None, absent, |_: Option<Base<'_>>| next()).await {
            Ok(done) => return done.response(&write, warnings).await,
            // Another generated name can be free, but not a name that a mutating plugin has set.
            Err(status) if attempts > 0 && status.reason == reason::ALREADY_EXISTS && is_about(&status, &name) => {}
            Err(status) => return Err(status),
        }
    }
}

fn is_about(status: &Status, name: &str) -> bool {
    status.details.as_ref().is_some_and(|details| details.name == name)
}
