//! Superblock: formats a pool, and recognizes the regions of one.
//!
//! Words of the superblock (little-endian, the rest of its 4 KiB zero):
//! 0 magic, 1 version, 2 and 3 pool id, 4 server, 5 number of servers, 6 region bytes, 7 block
//! bytes, 8 clients, 9 members, 10 tables, 11 redo bytes, 12 clients' offset, 13 roots' offset,
//! 14 client areas' offset, 15 block table's offset, 16 blocks' offset, 17 number of blocks,
//! 18 checksum (xxh3-64 of words 0 to 17).
//!
//! The last word of server 0's page is the *claim*: the incarnation that formats a pool that others may
//! format as well ([`format_once`]); 0 if nobody does.
//!
//! INV-SUP-1: the formatter writes the magic word last, after everything else on every server.
//! INV-SUP-2: a reader recomputes every field of a superblock from the options in it before it uses the
//! field.
//! INV-SUP-3: the formatter of a pool that others may format holds the claim, and has seen since that
//! not all servers have their magic word. A formatter takes a claim from the dead alone, once they are
//! fenced.

use farleaf_fabric::codec::Writer;
use farleaf_fabric::{Client, Endpoint, GlobalAddr, Incarnation, ServerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::geometry::{Geometry, SUPERBLOCK_BYTES};
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};
use crate::{FormatError, FormatFault, PoolError, PoolOptions};

/// `FARLEAF` and a line end.
const MAGIC: u64 = u64::from_le_bytes(*b"FARLEAF\n");
const VERSION: u64 = 3;
/// Words at the start of a memory server's region that say what it is part of.
pub const SUPERBLOCK_WORDS: usize = 19;
const WORDS: usize = SUPERBLOCK_WORDS;
const CHECKSUM: usize = WORDS - 1;
const CHUNK_BYTES: u64 = 64 << 10;
/// Word of server 0's page that holds the claim.
const CLAIM_WORD: usize = SUPERBLOCK_BYTES as usize / 8 - 1;
/// Number and duration of the waits for another process that formats the pool.
const CLAIM_WAITS: u32 = 1_000;
const CLAIM_WAIT_NS: u64 = 10_000_000;

/// Makes an empty pool of every server that the client reaches. What was there is lost; nobody may
/// use it meanwhile.
///
/// Cost: per server 1 READ for each 64 KiB of tables, and a WRITE where they are not zero, and 4
/// more WRITEs.
///
/// # Errors
/// `Invalid` if the options make no sense or a region is too small for them (nothing was done);
/// `Fabric` (the pool is not formatted).
pub async fn format(client: &Client, options: &PoolOptions) -> Result<(), PoolError> {
    format_claimed(client, options, 0).await
}

/// As [`format()`]; the claim is as given afterwards.
async fn format_claimed(
    client: &Client,
    options: &PoolOptions,
    claim: u64,
) -> Result<(), PoolError> {
    let lines = Reconnects::new(client.endpoint().server_count());
    let client = Reliable::new(client, &lines, PATIENCE_NS);
    let endpoint = client.endpoint();
    let lengths: Vec<u64> = (0..endpoint.server_count())
        .map(|server| endpoint.region_bytes(ServerId(server as u16)))
        .collect();
    let geometry = Geometry::new(*options, &lengths)?;
    let pool_id = u128::from(endpoint.random()) << 64 | u128::from(endpoint.random());
    for server in geometry.server_ids() {
        client.write_word(GlobalAddr::new(server, 0), 0).await?;
    }
    for server in geometry.server_ids() {
        zero(client, server, SUPERBLOCK_BYTES, geometry.server(server).blocks_at).await?;
        let mut page = client.buf(SUPERBLOCK_BYTES as usize);
        page.words_mut().fill(0);
        page.words_mut()[..WORDS].copy_from_slice(&encode(&geometry, server, pool_id));
        page.words_mut()[0] = 0;
        if server == ServerId(0) {
            page.words_mut()[CLAIM_WORD] = claim;
        }
        client.write(GlobalAddr::new(server, 0), page).await?;
    }
    client.write_word(geometry.epoch_addr(), 1).await?;
    for server in geometry.server_ids() {
        client.write_word(GlobalAddr::new(server, 0), MAGIC).await?;
    }
    Ok(())
}

/// Makes an empty pool of every server that the client reaches, unless they have one. Of several who do
/// so at once, of different incarnations, one makes it and the others wait. False if there was one, which then still has to be
/// looked at ([`crate::Pool::join`]).
///
/// Cost: 1 READ, and 1 READ per server; besides, if there is none, the same again, 2 CAS and what
/// [`format()`] costs.
///
/// # Errors
/// As [`format()`]; `Format` if some servers are formatted and others are not, though nobody is
/// formatting them: what those held is lost. `Busy` if somebody else takes too long.
pub async fn format_once(client: &Client, options: &PoolOptions) -> Result<bool, PoolError> {
    let lines = Reconnects::new(client.endpoint().server_count());
    let reliable = Reliable::new(client, &lines, PATIENCE_NS);
    let own = client.endpoint().incarnation();
    let claim_at = GlobalAddr::new(ServerId(0), CLAIM_WORD as u64 * 8);
    for _ in 0..CLAIM_WAITS {
        let claim = reliable.word(claim_at).await?;
        let formatted = formatted(reliable).await?;
        let Some(missing) = formatted.iter().position(|is_formatted| !is_formatted) else {
            return Ok(false);
        };
        if claim == 0 && formatted.contains(&true) {
            // Somebody may have begun since, or ended.
            if reliable.word(claim_at).await? == 0 && self::formatted(reliable).await? == formatted
            {
                let fault = FormatFault::NotFormatted;
                return Err(FormatError { server: ServerId(missing as u16), fault }.into());
            }
            continue;
        }
        if claim != 0 && claim != own.0 {
            let who = Incarnation(claim);
            if !client.endpoint().is_dead(who).await {
                client.endpoint().sleep(CLAIM_WAIT_NS).await;
                continue;
            }
            client.fence_everywhere(who).await?;
        }
        if reliable.cas(claim_at, claim, own.0).await? != claim {
            continue;
        }
        // INV-SUP-3: another may have made the pool since it was looked at.
        let is_missing = self::formatted(reliable).await?.contains(&false);
        if is_missing {
            format_claimed(client, options, own.0).await?;
        }
        reliable.cas_release(claim_at, own.0, 0).await?;
        return Ok(is_missing);
    }
    Err(PoolError::Busy("the pool"))
}

/// The pool whose data a memory server holds, by the first words of its region; `None` if it holds none, or
/// one that this program does not read.
pub fn pool_id_of(words: &[u64; SUPERBLOCK_WORDS]) -> Option<u128> {
    let is_whole = words[0] == MAGIC && words[1] == VERSION && words[CHECKSUM] == checksum(words);
    is_whole.then(|| pool_id(words))
}

/// Finds the servers whose first words are not zero.
async fn formatted(client: Reliable<'_>) -> Result<Vec<bool>, PoolError> {
    let servers = (0..client.endpoint().server_count()).map(|server| ServerId(server as u16));
    let firsts = client.words(servers.map(|server| GlobalAddr::new(server, 0))).await?;
    Ok(firsts.into_iter().map(|word| word != 0).collect())
}

/// Reads and checks every server's superblock; the pool's geometry and its id.
///
/// Cost: 1 round trip, 1 READ per server.
///
/// # Errors
/// `Format` with the server and the reason; `Fabric`.
pub(crate) async fn open(client: Reliable<'_>) -> Result<(Geometry, u128), PoolError> {
    let endpoint = client.endpoint();
    let count = endpoint.server_count();
    let mut ops = client.client().ops();
    for server in 0..count {
        ops.read(GlobalAddr::new(ServerId(server as u16), 0), client.buf(WORDS * 8));
    }
    let ops = client.post_many(ops).await?;
    let blocks: Vec<[u64; WORDS]> = (0..count)
        .map(|server| std::array::from_fn(|word| ops.buf(server).words()[word]))
        .collect();
    let Some(first) = blocks.first() else {
        return Err(PoolError::Invalid("the fabric reaches no memory server".into()));
    };
    for (server, block) in blocks.iter().enumerate() {
        let server = ServerId(server as u16);
        check(block, first, server, count as u64, endpoint.region_bytes(server))
            .map_err(|fault| FormatError { server, fault })?;
    }
    let geometry = rebuild(&blocks);
    let geometry = geometry
        .map_err(|why| FormatError { server: ServerId(0), fault: FormatFault::Geometry(why) })?;
    for (server, block) in blocks.iter().enumerate() {
        let server = ServerId(server as u16);
        if encode(&geometry, server, pool_id(block)) != *block {
            let why = "its offsets do not follow from its sizes".to_string();
            return Err(FormatError { server, fault: FormatFault::Geometry(why) }.into());
        }
    }
    Ok((geometry, pool_id(first)))
}

fn encode(geometry: &Geometry, server: ServerId, pool_id: u128) -> [u64; WORDS] {
    let options = geometry.options();
    let own = geometry.server(server);
    let mut words = [
        MAGIC,
        VERSION,
        pool_id as u64,
        (pool_id >> 64) as u64,
        u64::from(server.0),
        geometry.servers() as u64,
        own.region_bytes,
        options.block_bytes,
        options.clients_max.into(),
        options.members_max.into(),
        options.tables_max.into(),
        options.redo_bytes.into(),
        geometry.clients_at,
        geometry.roots_at,
        geometry.areas_at,
        geometry.block_table_at,
        own.blocks_at,
        own.block_count.into(),
        0,
    ];
    words[CHECKSUM] = checksum(&words);
    words
}

fn checksum(words: &[u64; WORDS]) -> u64 {
    xxh3_64(&Writer::bytes_of(&words[..CHECKSUM]))
}

fn pool_id(block: &[u64; WORDS]) -> u128 {
    u128::from(block[3]) << 64 | u128::from(block[2])
}

fn check(
    block: &[u64; WORDS],
    first: &[u64; WORDS],
    server: ServerId,
    servers: u64,
    region_bytes: u64,
) -> Result<(), FormatFault> {
    match block[0] {
        MAGIC => {}
        0 => return Err(FormatFault::NotFormatted),
        _ => return Err(FormatFault::Foreign),
    }
    if block[1] != VERSION {
        return Err(FormatFault::Version { found: block[1], supported: VERSION });
    }
    if block[CHECKSUM] != checksum(block) {
        return Err(FormatFault::Checksum);
    }
    if block[6] != region_bytes {
        return Err(FormatFault::Length { found: region_bytes, expected: block[6] });
    }
    if pool_id(block) != pool_id(first) {
        return Err(FormatFault::PoolId { found: pool_id(block), expected: pool_id(first) });
    }
    if block[5] != servers {
        return Err(FormatFault::ServerCount { found: servers, expected: block[5] });
    }
    if block[4] != u64::from(server.0) {
        return Err(FormatFault::ServerId { found: block[4] });
    }
    if block[7..12] != first[7..12] {
        return Err(FormatFault::Geometry("its options differ from server 0's".into()));
    }
    Ok(())
}

fn rebuild(blocks: &[[u64; WORDS]]) -> Result<Geometry, String> {
    let first = &blocks[0];
    let small = |word: usize| u32::try_from(first[word]).map_err(|_| format!("word {word}"));
    let options = PoolOptions {
        block_bytes: first[7],
        clients_max: small(8)?,
        members_max: small(9)?,
        tables_max: small(10)?,
        redo_bytes: small(11)?,
    };
    let lengths: Vec<u64> = blocks.iter().map(|block| block[6]).collect();
    Geometry::new(options, &lengths).map_err(|error| error.to_string())
}

/// Makes bytes `from` to `to` zero. Memory that is zero is only read, so that fresh memory is not
/// committed.
async fn zero(client: Reliable<'_>, server: ServerId, from: u64, to: u64) -> Result<(), PoolError> {
    for at in (from..to).step_by(CHUNK_BYTES as usize) {
        let bytes = CHUNK_BYTES.min(to - at);
        let addr = GlobalAddr::new(server, at);
        let mut chunk = client.read(addr, client.buf(bytes as usize)).await?;
        if chunk.words().iter().any(|word| *word != 0) {
            chunk.words_mut().fill(0);
            client.write(addr, chunk).await?;
        }
    }
    Ok(())
}
