//! Vectors of 256 numbers in Rust: sends them to the Python program beside this folder,
//! or receives them from it, without any crate.
//!     vectors ring PATH COUNT | unix PATH COUNT | pipe COUNT | receive PATH
mod ring;

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;

const LENGTH: usize = 256;
const BYTES: usize = LENGTH * 4;

/// Fills in the vector with this number.  Its mean is exactly number % 1000 + 127.5.
fn fill(memory: &mut [u8], number: u64) {
    let first = (number % 1000) as f32;
    for (at, place) in memory.chunks_exact_mut(4).enumerate() {
        place.copy_from_slice(&(first + at as f32).to_ne_bytes());
    }
}

fn mean(memory: &[u8]) -> f32 {
    let numbers = memory.chunks_exact(4).map(|place| f32::from_ne_bytes(place.try_into().unwrap()));
    numbers.sum::<f32>() / LENGTH as f32
}

fn send_through_ring(path: &str, count: u64) -> io::Result<()> {
    let mut ring = ring::Ring::connect(path, ring::PRODUCER)?;
    for number in 0..count {
        ring.send(BYTES, 1, |memory| fill(memory, number))?;
    }
    ring.close()
}

fn write_all(output: impl Write, count: u64) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(256 * BYTES, output);
    let mut vector = [0; BYTES];
    for number in 0..count {
        fill(&mut vector, number);
        output.write_all(&vector)?;
    }
    output.flush()
}

fn receive(path: &str) -> io::Result<()> {
    let mut ring = ring::Ring::connect(path, ring::CONSUMER)?;
    let mut number = 0;
    let mut wrong = 0;
    while ring.receive(|memory, _type_id| {
        if memory.len() != BYTES || mean(memory) != (number % 1000) as f32 + 127.5 {
            wrong += 1;
        }
    })? {
        number += 1;
    }
    println!("{number} vectors, {wrong} wrong");
    ring.close()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let count = words.last().and_then(|word| word.parse().ok());
    let done = match (words.as_slice(), count) {
        (["ring", path, _], Some(count)) => send_through_ring(path, count),
        (["unix", path, _], Some(count)) => UnixStream::connect(path).and_then(|to| write_all(to, count)),
        (["pipe", _], Some(count)) => write_all(io::stdout().lock(), count),
        (["receive", path], _) => receive(path),
        _ => Err(io::Error::other("usage: vectors ring PATH COUNT | unix PATH COUNT | pipe COUNT | receive PATH")),
    };
    if let Err(error) = done {
        eprintln!("vectors: {error}");
        std::process::exit(1);
    }
}
