//! Numbers on the command line. By default clap takes `-1` for an unknown flag, and complains about an invalid digit in a
//! count. Here every flag accepts negative numbers, so that the error says what the flag needs.

use std::any::TypeId;
use std::str::FromStr;

use clap::{Arg, Command};
use qbert_quant::Precision;

/// The command with such numbers in all of its verbs.
pub(super) fn with_clear_errors(command: Command) -> Command {
    command.mut_args(argument).mut_subcommands(with_clear_errors)
}

fn argument(argument: Arg) -> Arg {
    if !argument.get_action().takes_values() {
        return argument;
    }
    let argument = argument.allow_negative_numbers(true);
    let holds = argument.get_value_parser().type_id();
    if holds == TypeId::of::<usize>() {
        argument.value_parser(whole::<usize>)
    } else if holds == TypeId::of::<u64>() {
        argument.value_parser(whole::<u64>)
    } else if holds == TypeId::of::<u32>() {
        argument.value_parser(whole::<u32>)
    } else if holds == TypeId::of::<Precision>() {
        argument.value_parser(width)
    } else {
        argument
    }
}

fn width(text: &str) -> Result<Precision, String> {
    text.parse().map_err(|error: qbert_quant::Error| error.hint().unwrap_or_else(|| error.to_string()))
}

fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        let is_large = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_large { "the number is too large".to_owned() } else { "it must be a whole number, 0 or more".to_owned() }
    })
}
