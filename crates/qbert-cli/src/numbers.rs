//! Numbers on the command line. By itself clap takes `-1` for a flag that does not exist, and says of a count that a digit is
//! invalid. Here every flag takes negative numbers, so that whoever gives one hears what the flag needs instead.

use std::any::TypeId;
use std::str::FromStr;

use clap::{Arg, Command};

/// The command with such numbers in all of its verbs.
pub(super) fn said_plainly(command: Command) -> Command {
    command.mut_args(argument).mut_subcommands(said_plainly)
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
    } else {
        argument
    }
}

fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        let is_large = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_large { "the number is too large".to_owned() } else { "it must be a whole number from 0 up".to_owned() }
    })
}
