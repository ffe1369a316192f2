package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import thermocline.interop.cluster.Bookie;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.Offloader;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/** BookKeeper's own bookies with our offloader and gateway: their ledgers are settled and released, and their disks are freed. */
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class SharedBookiesTest {
    private static final int BOOKIES = 3;
    private static final int LEDGERS = 4;
    private static final int ENTRIES = 200;
    private static final int LENGTH = 20_000;
    /** What all copies of all ledgers take. */
    private static final long WRITTEN = 2L * LEDGERS * ENTRIES * LENGTH;
    private static final Duration FREED = Duration.ofSeconds(60);
    /** Between the two steps of a release. */
    private static final String GRACE = "30s";
    /** Entries go to small entry logs at once, and space comes back within seconds of a ledger's going. */
    private static final String[] SETTINGS = {
        "ledgerStorageClass=org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
        "logSizeLimit=1048576",
        "entryLogFilePreallocationEnabled=false",
        "gcWaitTime=1000",
        "gcOverreplicatedLedgerWaitTime=1000",
    };

    @Test
    @Timeout(180)
    void whatApacheBookiesHeldIsReadFromColdIdsAndTheirDisksAreFreed() throws Exception {
        try (Cluster cluster = new Cluster(BOOKIES, "apache", SETTINGS); BookKeeper client = cluster.connect(Wire.V3)) {
            cluster.gateway();
            List<Long> ledgers = write(client, 3);
            Waiting.until("entry logs hold what was written", FREED, () -> entryLogs(cluster) > WRITTEN / 2);
            for (long ledger : ledgers) {
                cluster.offloader().release(ledger);
            }
            // Each bookie keeps the log that it is writing.
            Waiting.until("Apache's bookies free their disks", FREED, () -> entryLogs(cluster) < WRITTEN / 4);
            checkAll(cluster, ledgers);
        }
    }

    /** With the two steps that releases take beside bookies that cannot send readers on. */
    @Test
    @Timeout(180)
    void whatWasOpenedBeforeReadsOnWhileOneBookieOfEachWriteSetStays() throws Exception {
        try (Cluster cluster = new Cluster(BOOKIES, "apache", SETTINGS); BookKeeper client = cluster.connect(Wire.V3)) {
            cluster.gateway();
            List<Long> ledgers = write(client, 2);
            List<LedgerHandle> before = new ArrayList<>();
            for (long ledger : ledgers) {
                before.add(client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD));
            }
            Waiting.until("entry logs hold what was written", FREED, () -> entryLogs(cluster) > WRITTEN * 3 / 4);
            Offloader offloader = cluster.offloader(GRACE);
            for (long ledger : ledgers) {
                assertFalse(offloader.releaseAsFarAsMayBe(ledger), "one bookie stays");
            }
            // One of two copies stays, and each bookie keeps the log that it is writing.
            Waiting.until("those that may go are collected", FREED, () -> entryLogs(cluster) < WRITTEN * 3 / 4);
            for (LedgerHandle reader : before) {
                check(reader);
            }
            checkAll(cluster, ledgers);
            // Nothing but an order makes this offloader release, so the bookies that stay were there until here.
            for (long ledger : ledgers) {
                Waiting.until("the second step is done", FREED, () -> offloader.releaseAsFarAsMayBe(ledger));
            }
            Waiting.until("Apache's bookies free their disks", FREED, () -> entryLogs(cluster) < WRITTEN / 4);
            checkAll(cluster, ledgers);
        }
    }

    private static List<Long> write(BookKeeper client, int ensemble) throws Exception {
        List<Long> ledgers = new ArrayList<>();
        for (int i = 0; i < LEDGERS; i++) {
            LedgerHandle writer = client.createLedger(ensemble, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
            for (int entry = 0; entry < ENTRIES; entry++) {
                writer.addEntry(Payloads.of(writer.getId(), entry, LENGTH));
            }
            writer.close();
            ledgers.add(writer.getId());
        }
        return ledgers;
    }

    /** Every ledger is read by clients that open it now. */
    private static void checkAll(Cluster cluster, List<Long> ledgers) throws Exception {
        for (Wire wire : Wire.values()) {
            try (BookKeeper reading = cluster.connect(wire)) {
                for (long ledger : ledgers) {
                    check(reading.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD));
                    check(reading.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD));
                }
            }
        }
    }

    private static void check(LedgerHandle reader) throws Exception {
        assertEquals(ENTRIES - 1, reader.getLastAddConfirmed());
        Enumeration<LedgerEntry> entries = reader.readEntries(0, ENTRIES - 1);
        for (int entry = 0; entry < ENTRIES; entry++) {
            assertArrayEquals(
                Payloads.of(reader.getId(), entry, LENGTH), entries.nextElement().getEntry(), "payload of entry " + entry);
        }
        assertTrue(!entries.hasMoreElements());
    }

    /** Bytes of all entry logs of all bookies. */
    private static long entryLogs(Cluster cluster) throws Exception {
        long bytes = 0;
        for (Bookie bookie : cluster.bookies()) {
            try (Stream<Path> files = Files.list(bookie.dir().resolve("ledgers/current"))) {
                for (Path file : files.filter(name -> name.toString().endsWith(".log")).toList()) {
                    // One that has just been collected is no error.
                    bytes += Files.exists(file) ? file.toFile().length() : 0;
                }
            }
        }
        return bytes;
    }
}
