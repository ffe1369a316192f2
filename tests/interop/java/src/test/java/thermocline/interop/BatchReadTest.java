package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.ExtendWith;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** Many entries for one request, from clients of 4.17 on; version 3 has no such request. */
@ExtendWith(SharedCluster.class)
class BatchReadTest {
    private final Cluster cluster;

    BatchReadTest(Cluster cluster) {
        this.cluster = cluster;
    }

    private BookKeeper connect() throws Exception {
        ClientConfiguration configuration = cluster.configuration(Wire.V2);
        configuration.setBatchReadEnabled(true);
        return new BookKeeper(configuration);
    }

    private static LedgerHandle written(BookKeeper client, int count) throws Exception {
        LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
        Payloads.append(writer, count);
        writer.close();
        return client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
    }

    /** Reads {@code count} entries, 100 kB at a time; returns how many batches that took. */
    private static int readAll(LedgerHandle reader, int count) throws Exception {
        int batches = 0;
        for (long next = 0; next < count; batches++) {
            List<LedgerEntry> batch = Collections.list(reader.batchReadEntries(next, 1000, 100_000));
            assertTrue(!batch.isEmpty(), "an empty batch at " + next);
            for (LedgerEntry entry : batch) {
                assertEquals(next, entry.getEntryId());
                assertArrayEquals(Payloads.of(reader.getId(), next), entry.getEntry());
                next++;
            }
        }
        return batches;
    }

    @Test
    void aBatchEndsAtItsCount() throws Exception {
        try (BookKeeper client = connect()) {
            LedgerHandle reader = written(client, 100);
            Payloads.check(reader.getId(), 0, 19, reader.batchReadEntries(0, 20, 5 * 1024 * 1024));
            Payloads.check(reader.getId(), 63, 72, reader.batchReadEntries(63, 10, 5 * 1024 * 1024));
            Payloads.check(reader.getId(), 99, 99, reader.batchReadEntries(99, 1, 5 * 1024 * 1024));
        }
    }

    @Test
    void aLedgerIsReadBatchByBatch() throws Exception {
        try (BookKeeper client = connect()) {
            LedgerHandle reader = written(client, 300);
            int batches = readAll(reader, 300);
            // 300 entries of about a kilobyte each, and 100 kB at a time.
            assertTrue(batches >= 3, batches + " batches");
        }
    }

    /** The first entry is given however small the limit. */
    @Test
    void theFirstEntryAlwaysFits() throws Exception {
        try (BookKeeper client = connect()) {
            LedgerHandle reader = written(client, 20);
            List<LedgerEntry> batch = new ArrayList<>(Collections.list(reader.batchReadEntries(5, 10, 100)));
            assertTrue(!batch.isEmpty());
            assertArrayEquals(Payloads.of(reader.getId(), 5), batch.get(0).getEntry());
        }
    }

    /** The batches of a released ledger come from its cold ids. */
    @Test
    @EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
    void aReleasedLedgerIsReadBatchByBatch() throws Exception {
        cluster.gateway();
        try (BookKeeper client = connect()) {
            long ledger = written(client, 300).getId();
            cluster.offloader().release(ledger);
            LedgerHandle reader = client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.check(ledger, 63, 72, reader.batchReadEntries(63, 10, 5 * 1024 * 1024));
            int batches = readAll(reader, 300);
            assertTrue(batches >= 3 && batches <= 30, batches + " batches");
        }
    }
}
