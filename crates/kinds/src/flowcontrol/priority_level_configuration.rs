//! PriorityLevelConfiguration (`flowcontrol.apiserver.k8s.io/v1`): limits the concurrent requests of one priority level.
//!
//! Source: `pkg/registry/flowcontrol/prioritylevelconfiguration`, `ValidatePriorityLevelConfiguration` in
//! `pkg/apis/flowcontrol/validation`, `pkg/apis/flowcontrol/v1/defaults.go`.

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, child, given, is_same, number, quoted, text};

use super::status::validate_status;
use crate::defaults::Default::{If, Number, Positive};
use crate::defaults::Defaults;
use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::NONE;
use listwatch_printers::{AGE, Cell, Column, Json, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    validate,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    ..Kind::cluster("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration")
};

static QUEUING_DEFAULTS: Defaults =
    Defaults(&[("queues", Positive(64)), ("handSize", Positive(8)), ("queueLengthLimit", Positive(50))]);
static LIMIT_RESPONSE_DEFAULTS: Defaults = Defaults(&[("queuing", If(&QUEUING_DEFAULTS))]);
static LIMITED_DEFAULTS: Defaults = Defaults(&[
    ("nominalConcurrencyShares", Number(30)),
    ("lendablePercent", Number(0)),
    ("limitResponse", If(&LIMIT_RESPONSE_DEFAULTS)),
]);
static EXEMPT_DEFAULTS: Defaults = Defaults(&[("nominalConcurrencyShares", Number(0)), ("lendablePercent", Number(0))]);
static SPEC_DEFAULTS: Defaults = Defaults(&[("limited", If(&LIMITED_DEFAULTS)), ("exempt", If(&EXEMPT_DEFAULTS))]);
static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

/// The largest number of queues of one priority level.
const QUEUES_MAX: i64 = 10_000_000;

/// The largest number of hash bits that shuffle sharding can use.
const HASH_BITS_MAX: i64 = 60;

/// An annotation that only `v1beta3` allows.
const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

/// Validates a priority level (`ValidatePriorityLevelConfiguration`).
fn validate(level: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (metadata, spec) = (child(level, "metadata"), child(level, "spec"));
    let name = text(metadata, "name");
    if child(metadata, "annotations").contains_key(PRESERVE_ZERO) {
        let why = format!("annotation '{PRESERVE_ZERO}' is forbidden");
        errors.push(FieldError::forbidden("metadata.annotations", why));
    }
    let kind = text(spec, "type");
    if (name == "exempt") != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid("spec.type", quoted(kind), why));
    }
    let (limited, exempt) = (given(spec, "limited"), given(spec, "exempt"));
    match kind {
        "Exempt" => {
            if limited.is_some() {
                errors.push(FieldError::forbidden("spec.limited", "must be nil if the type is not Limited"));
            }
            if let Some(Value::Object(exempt)) = exempt {
                validate_shares(exempt, "spec.exempt.", errors);
                validate_lendable_percent(exempt, "spec.exempt.", errors);
            }
        }
        "Limited" => {
            if exempt.is_some() {
                errors.push(FieldError::forbidden("spec.exempt", "must be nil if the type is Limited"));
            }
            match limited.and_then(Value::as_object) {
                Some(limited) => validate_limits(limited, errors),
                None => {
                    errors.push(FieldError::required("spec.limited", "must not be empty when type is Limited"));
                }
            }
        }
        _ => errors.push(FieldError::not_supported("spec.type", kind, &["Exempt", "Limited"])),
    }
    validate_mandatory_level(name, level, errors);
    validate_status(level, None, errors);
}

/// Validates the two levels that every cluster has. Only `spec.exempt` of the level `exempt` may change.
fn validate_mandatory_level(name: &str, level: &Object, errors: &mut Errors) {
    let spec = child(level, "spec");
    let why = match name {
        "exempt" => {
            let same = text(spec, "type") == "Exempt" && given(spec, "limited").is_none();
            (!same).then(|| format!("spec of '{name}' except the 'spec.exempt' field must equal the fixed value"))
        }
        "catch-all" => {
            let fixed = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
                "limitResponse": {"type": "Reject"}}});
            (!is_same(level.get("spec"), Some(&fixed))).then(|| format!("spec of '{name}' must equal the fixed value"))
        }
        _ => None,
    };
    if let Some(why) = why {
        errors.push(FieldError::invalid("spec", level.get("spec").unwrap_or(&Value::Null), why));
    }
}

fn validate_shares(holder: &Object, at: &str, errors: &mut Errors) {
    if let Some(shares) = number(holder, "nominalConcurrencyShares").filter(|shares| *shares < 0) {
        let why = "must be a non-negative integer";
        errors.push(FieldError::invalid(format!("{at}nominalConcurrencyShares"), shares, why));
    }
}

fn validate_lendable_percent(holder: &Object, at: &str, errors: &mut Errors) {
    if let Some(percent) = number(holder, "lendablePercent").filter(|percent| !(0..=100).contains(percent)) {
        let why = "must be between 0 and 100, inclusive";
        errors.push(FieldError::invalid(format!("{at}lendablePercent"), percent, why));
    }
}

/// Validates `spec.limited`.
fn validate_limits(limited: &Object, errors: &mut Errors) {
    let at = "spec.limited.";
    validate_shares(limited, at, errors);
    let response = child(limited, "limitResponse");
    let queuing = given(response, "queuing").and_then(Value::as_object);
    let field = format!("{at}limitResponse.queuing");
    match (text(response, "type"), queuing) {
        ("Reject", Some(_)) => {
            let why = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(field, why));
        }
        ("Queue", None) => {
            let why = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(field, why));
        }
        ("Queue", Some(queuing)) => validate_queuing(queuing, &format!("{field}."), errors),
        ("Reject", None) => {}
        (other, _) => {
            let field = format!("{at}limitResponse.type");
            errors.push(FieldError::not_supported(field, other, &["Queue", "Reject"]));
        }
    }
    validate_lendable_percent(limited, at, errors);
    if let Some(percent) = number(limited, "borrowingLimitPercent").filter(|percent| *percent < 0) {
        let why = "if specified, must be a non-negative integer";
        errors.push(FieldError::invalid(format!("{at}borrowingLimitPercent"), percent, why));
    }
}

/// Validates the queues and the hand size. Shuffle sharding has [`HASH_BITS_MAX`] bits of hash.
fn validate_queuing(queuing: &Object, at: &str, errors: &mut Errors) {
    let of = |name: &str| number(queuing, name).unwrap_or(0);
    let mut wrong = |name: &str, why: String| {
        errors.push(FieldError::invalid(format!("{at}{name}"), of(name), why));
    };
    let positive = || "must be positive".to_owned();
    let (queues, hand) = (of("queues"), of("handSize"));
    if of("queueLengthLimit") <= 0 {
        wrong("queueLengthLimit", positive());
    }
    if queues <= 0 {
        wrong("queues", positive());
    } else if queues > QUEUES_MAX {
        wrong("queues", format!("must not be greater than {QUEUES_MAX}"));
    }
    if hand <= 0 {
        wrong("handSize", positive());
    } else if hand > queues {
        wrong("handSize", format!("should not be greater than queues ({queues})"));
    } else if ((queues as f64).log2() * hand as f64).ceil() as i64 > HASH_BITS_MAX {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS_MAX}"
        );
        wrong("handSize", why);
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "Limited or Exempt."),
        Column::text("NominalConcurrencyShares", "The level's share of all seats."),
        Column::text("Queues", "How many queues the level has."),
        Column::text("HandSize", "How many queues a flow is dealt."),
        Column::text("QueueLengthLimit", "How many requests may wait in a queue."),
        AGE,
    ],
    cells: |level| {
        let limited = level.at("spec.limited");
        let queuing = limited.at("limitResponse.queuing");
        let number = |json: Json<'_>, key: &str| json.get(key).int().map_or_else(|| NONE.into(), Cell::Integer);
        vec![
            level.name().into(),
            level.at("spec.type").string().into(),
            number(limited, "nominalConcurrencyShares"),
            number(queuing, "queues"),
            number(queuing, "handSize"),
            number(queuing, "queueLengthLimit"),
            level.age().into(),
        ]
    },
};
