//! Carries out POST: creates an object.

use listwatch_meta::Status;
use listwatch_meta::status::reason;
use listwatch_validation::metadata;
use listwatch_validation::names;
use listwatch_validation::object_meta as meta;

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
    let Decoded { object, mut warnings } = decode_body(write.registry, resource, request, options.field_validation)?;
    warnings.extend(resource.strategy.warnings(&object, None));
    let given = meta::text(metadata(&object), "name").to_owned();
    let base = meta::text(metadata(&object), "generateName").to_owned();
    let generates = given.is_empty() && !base.is_empty();
    let write = Write { name: &given, dry_run: options.dry_run, ..*write };
    let mut attempts = if generates { GENERATED_NAMES_MAX } else { 1 };
    // The first attempt takes the tree. A retry after a name collision or a conflict is rare and decodes the body
    // again.
    let mut first = Some(object);
    loop {
        attempts -= 1;
        let name = if generates { names::generate(&base, |below| rand::random_range(0..below)) } else { given.clone() };
        let absent = Absent::Post { generated_name: generates.then_some(name.as_str()) };
        let again =
            || decode_body(write.registry, resource, request, options.field_validation).map(|decoded| decoded.object);
        let mut next = || first.take().map_or_else(again, Ok);
        let key = match resource.key(request.namespace, &name) {
            Ok(key) => key,
            Err(status) => {
                // Validation reports every error of the object, including an invalid name.
                write.check_new(absent, next()?).await?;
                return Err(status);
            }
        };
        match write.run(&key, None, absent, |_: Option<Base<'_>>| next()).await {
            Ok(done) => return done.response(&write, &key, warnings).await,
            Err(status) if attempts > 0 && status.reason == reason::ALREADY_EXISTS => {}
            Err(status) => return Err(status),
        }
    }
}
