//! What a step is called with: `[[arguments], {keywords}, what becomes of its arrays]`.
//!
//! The last says of arrays on a GPU: from how many bytes on those of the result are kept for others, for how many of them and
//! for how long; whether an answer to the same call was lost, whether whoever calls keeps the arguments until it has its
//! answer, and whose arrays it has. The workflow's client says it of its own arguments and of what it gets.

use bytes::Bytes;

use super::packed::{MessageError, Packed, Writer};
use super::pieces::Pieces;

/// What the client of a workflow calls it with.
#[derive(Clone, Debug)]
pub struct Request {
    args: Packed,
    kwargs: Packed,
    arrays: Option<ClientArrays>,
}

/// What it says of arrays on a GPU: all of its fields but for these two.
#[derive(Clone, Debug)]
struct ClientArrays {
    fields: Vec<(String, Packed)>,
    again: bool,
    held: bool,
}

impl Request {
    pub fn read(message: &Bytes) -> Result<Request, MessageError> {
        let mut elements = Packed::read(message)?.elements()?.into_iter();
        let (Some(args), Some(kwargs), arrays, None) =
            (elements.next(), elements.next(), elements.next(), elements.next())
        else {
            return Err(MessageError::Other("a call's arguments and keywords"));
        };
        // Whatever they are is for functions; but they are to be these two.
        args.elements()?;
        kwargs.fields()?;
        let arrays = arrays.map(|arrays| arrays.fields()).transpose()?.map(|mut fields| {
            let is_true = |fields: &[(String, Packed)], name: &str| {
                fields.iter().any(|(field, value)| field == name && value.is_true())
            };
            let (again, held) = (is_true(&fields, "again"), is_true(&fields, "held"));
            fields.retain(|(field, _)| field != "again" && field != "held");
            ClientArrays { fields, again, held }
        });
        Ok(Request { args, kwargs, arrays })
    }
}

/// Of one call of a step.
pub struct Arguments<'r> {
    pub values: Values<'r>,
    pub request: &'r Request,
    pub arrays: StepArrays,
}

pub enum Values<'r> {
    /// The workflow's.
    Own,
    /// Results of steps.
    Results(&'r [Packed]),
}

/// What becomes of the arrays of its result.
#[derive(Clone, Copy, Debug)]
pub struct StepArrays {
    pub least: u64,
    /// How many calls have them; 0 is the workflow's client.
    pub uses: u64,
    pub expiry_s: f64,
}

impl Arguments<'_> {
    /// `again`: the call may have been carried out before.
    pub fn message(&self, again: bool) -> Result<Pieces, MessageError> {
        let mut writer = Writer::default();
        writer.list(3)?;
        match self.values {
            Values::Own => {
                writer.value(&self.request.args)?;
                writer.value(&self.request.kwargs)?;
            }
            Values::Results(results) => {
                writer.list(results.len())?;
                results.iter().try_for_each(|result| writer.value(result))?;
                writer.map(0)?;
            }
        }
        self.write_arrays(&mut writer, again)?;
        writer.message()
    }

    /// Names of the arrays that it has by reference.
    pub fn references(&self) -> Result<Vec<String>, MessageError> {
        let values = match self.values {
            Values::Own => vec![&self.request.args, &self.request.kwargs],
            Values::Results(results) => results.iter().collect(),
        };
        let mut names = Vec::new();
        for value in values {
            names.extend(value.references()?.into_iter().map(|one| one.name));
        }
        Ok(names)
    }

    fn write_arrays(&self, writer: &mut Writer, again: bool) -> Result<(), MessageError> {
        let client = self.request.arrays.as_ref();
        let is_own = matches!(self.values, Values::Own);
        let held = is_own && client.is_some_and(|client| client.held);
        let again = again || is_own && client.is_some_and(|client| client.again);
        match client.filter(|_| self.arrays.uses == 0) {
            Some(client) => {
                writer.map(client.fields.len() + 2)?;
                for (field, value) in &client.fields {
                    writer.text(field)?;
                    writer.value(value)?;
                }
            }
            None => {
                writer.map(6)?;
                writer.text("place")?;
                writer.none();
                writer.text("least")?;
                writer.number(self.arrays.least);
                writer.text("uses")?;
                writer.number(self.arrays.uses);
                writer.text("expiry")?;
                writer.real(self.arrays.expiry_s);
            }
        }
        writer.text("again")?;
        writer.boolean(again);
        writer.text("held")?;
        writer.boolean(held);
        Ok(())
    }
}
