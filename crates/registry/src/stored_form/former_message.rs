//! Converts protobuf values of former API versions: [`current_body`].
//!
//! The table of types has only current versions. Most former messages have the same field numbers, so that the current type
//! decodes them. The others are rewritten here. `listwatch_kinds::former_versions` then converts the decoded object.
//!
//! Source: `generated.proto` of the former versions in `k8s.io/api` v0.36.

use listwatch_kinds::former_versions::{self, FormerVersion};
use listwatch_wire::protobuf::{self, DecodeError, Envelope, RawField, push_raw_field, raw_fields};

/// Returns the body of a value in a former version with the current `apiVersion` and field numbers. Returns `None` for a
/// value in any other version.
pub(super) fn current_body(stored: &[u8]) -> Result<Option<(Vec<u8>, FormerVersion)>, DecodeError> {
    let envelope = Envelope::parse(stored)?;
    let (api_version, kind) = (&*envelope.api_version, &*envelope.kind);
    let Some(former) = former_versions::find(api_version, kind) else { return Ok(None) };
    let raw = envelope.raw(stored);
    let message = match (api_version, kind) {
        ("discovery.k8s.io/v1beta1", "EndpointSlice") => {
            change_at(raw, &[2], &|endpoint| renumber(endpoint, &[(7, 8)]))?
        }
        ("extensions/v1beta1" | "networking.k8s.io/v1beta1", "Ingress") => {
            let message = change_at(raw, &[2, 1], &ingress_backend)?;
            // spec, rules, ingressRuleValue, http, paths, backend
            change_at(&message, &[2, 3, 2, 1, 1, 2], &ingress_backend)?
        }
        ("extensions/v1beta1", "DaemonSet") => {
            let generation = |field: &RawField<'_>| Ok(field.varint().unwrap_or(0));
            spec_number_to_annotation(raw, 5, "deprecated.daemonset.template.generation", &generation)?
        }
        ("extensions/v1beta1" | "apps/v1beta1", "Deployment") => {
            spec_number_to_annotation(raw, 8, "deprecated.deployment.rollback.to", &rollback_revision)?
        }
        ("node.k8s.io/v1alpha1", "RuntimeClass") => inline_second_field(raw)?,
        ("rbac.authorization.k8s.io/v1alpha1", "ClusterRole" | "Role") => {
            change_at(raw, &[2], &|rule| renumber(rule, &[(2, 0), (3, 2), (4, 3), (5, 4), (6, 5)]))?
        }
        ("resource.k8s.io/v1beta1", "ResourceClaim") => change_at(raw, &[2, 1, 1], &device_request)?,
        ("resource.k8s.io/v1beta1", "ResourceClaimTemplate") => change_at(raw, &[2, 2, 1, 1], &device_request)?,
        ("resource.k8s.io/v1beta1", "ResourceSlice") => change_at(raw, &[2, 6], &inline_second_field)?,
        _ => raw.to_vec(),
    };
    Ok(Some((protobuf::body(former.current, kind, &message), former)))
}

/// Converts one message.
type Change<'a> = &'a dyn Fn(&[u8]) -> Result<Vec<u8>, DecodeError>;

/// Copies a message and changes the messages at a path of field numbers. The path has at most six numbers, which bounds
/// the recursion.
fn change_at(message: &[u8], path: &[u32], change: Change<'_>) -> Result<Vec<u8>, DecodeError> {
    let Some((first, rest)) = path.split_first() else { return change(message) };
    let mut changed = Vec::with_capacity(message.len());
    for field in raw_fields(message)? {
        match field.payload().filter(|_| field.number == *first) {
            Some(payload) => push_raw_field(field.number, &change_at(payload, rest, change)?, &mut changed),
            None => field.push_as(field.number, &mut changed),
        }
    }
    Ok(changed)
}

/// Changes field numbers, given as pairs of the former and the current number. The number 0 drops a field.
fn renumber(message: &[u8], numbers: &[(u32, u32)]) -> Result<Vec<u8>, DecodeError> {
    let mut changed = Vec::with_capacity(message.len());
    for field in raw_fields(message)? {
        let found = numbers.iter().find(|(former, _)| *former == field.number);
        let current = found.map_or(field.number, |(_, current)| *current);
        if current > 0 {
            field.push_as(current, &mut changed);
        }
    }
    Ok(changed)
}

/// Moves the service name (1) and the service port (2) of a backend to a service (4) with a name (1) and a port (2). The
/// port has a name (1) and a number (2).
fn ingress_backend(backend: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut changed = Vec::with_capacity(backend.len() + 8);
    let (mut name, mut int_or_string): (&[u8], &[u8]) = (b"", b"");
    let fields = raw_fields(backend)?;
    for field in &fields {
        match (field.number, field.payload()) {
            (1, Some(payload)) => name = payload,
            (2, Some(payload)) => int_or_string = payload,
            _ => field.push_as(field.number, &mut changed),
        }
    }
    let mut port = Vec::new();
    let mut has_service = !name.is_empty();
    for field in raw_fields(int_or_string)? {
        match field.number {
            // The type is a string.
            1 => has_service |= field.varint() == Some(1),
            2 => {
                has_service |= field.varint().is_some_and(|number| number != 0);
                field.push_as(2, &mut port);
            }
            3 => {
                has_service |= field.payload().is_some_and(|text| !text.is_empty());
                field.push_as(1, &mut port);
            }
            _ => {}
        }
    }
    if has_service {
        let mut service = Vec::new();
        push_raw_field(1, name, &mut service);
        push_raw_field(2, &port, &mut service);
        push_raw_field(4, &service, &mut changed);
    }
    Ok(changed)
}

/// The largest number of a field that [`inline_second_field`] changes: the last one of a device in `v1beta1`.
const LAST_MOVED_FIELD: u32 = 12;

/// Moves the fields of the message 2 to the object, with numbers that are larger by one: the spec of a RuntimeClass, and
/// the member `basic` of a device.
fn inline_second_field(message: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut changed = Vec::with_capacity(message.len());
    for field in raw_fields(message)? {
        match field.payload().filter(|_| field.number == 2) {
            Some(inner) => {
                for field in raw_fields(inner)? {
                    // A later release gives new fields the same number in both messages.
                    let number = if field.number <= LAST_MOVED_FIELD { field.number + 1 } else { field.number };
                    field.push_as(number, &mut changed);
                }
            }
            None => field.push_as(field.number, &mut changed),
        }
    }
    Ok(changed)
}

/// Moves a field of the spec (2) of a workload to an annotation (12, with a key and a value) of the metadata (1).
fn spec_number_to_annotation(
    workload: &[u8],
    number: u32,
    annotation: &str,
    read: &dyn Fn(&RawField<'_>) -> Result<u64, DecodeError>,
) -> Result<Vec<u8>, DecodeError> {
    let mut found = None;
    for spec in raw_fields(workload)?.iter().filter(|field| field.number == 2).filter_map(RawField::payload) {
        for field in raw_fields(spec)?.iter().filter(|field| field.number == number) {
            found = Some(read(field)?.cast_signed());
        }
    }
    let Some(found) = found else { return Ok(workload.to_vec()) };
    let mut entry = Vec::new();
    push_raw_field(1, annotation.as_bytes(), &mut entry);
    push_raw_field(2, found.to_string().as_bytes(), &mut entry);
    let changed = change_at(workload, &[2], &|spec| renumber(spec, &[(number, 0)]))?;
    change_at(&changed, &[1], &|metadata| {
        let mut annotated = metadata.to_vec();
        push_raw_field(12, &entry, &mut annotated);
        Ok(annotated)
    })
}

/// The revision (1) of a RollbackConfig.
fn rollback_revision(rollback: &RawField<'_>) -> Result<u64, DecodeError> {
    let fields = raw_fields(rollback.payload().unwrap_or_default())?;
    Ok(fields.iter().filter(|field| field.number == 1).find_map(RawField::varint).unwrap_or(0))
}

/// Moves the fields of a device request to `exactly` (2), if one of them is set, and renumbers its alternatives (3).
fn device_request(request: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (mut changed, mut exactly, mut is_exact) = (Vec::with_capacity(request.len() + 8), Vec::new(), false);
    for field in raw_fields(request)? {
        match (field.number, field.payload()) {
            (7, Some(alternative)) => push_raw_field(3, &renumber(alternative, &[(7, 6), (8, 7)])?, &mut changed),
            (number @ (2..=6 | 8 | 9), payload) => {
                // Go writes the class, the mode and the count even if they are not set.
                is_exact |= match number {
                    2 | 4 => payload != Some(b""),
                    5 => field.varint() != Some(0),
                    _ => true,
                };
                field.push_as(if number < 7 { number - 1 } else { number - 2 }, &mut exactly);
            }
            _ => field.push_as(field.number, &mut changed),
        }
    }
    if is_exact {
        push_raw_field(2, &exactly, &mut changed);
    }
    Ok(changed)
}
