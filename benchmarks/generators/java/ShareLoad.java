// Share consumers of Kafka's own client, as a load: started by benchmarks/workloads/queues.py, from this source.
//
//   ShareLoad acknowledge BOOTSTRAP TOPIC GROUP RECORDS
//   ShareLoad workers BOOTSTRAP TOPIC GROUP WORKERS WORK_MS WARM_UP_S SECONDS
//
// The last line that it prints is JSON with what was measured.

import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class ShareLoad {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long STALL_NS = TimeUnit.SECONDS.toNanos(60);

    public static void main(String[] arguments) throws InterruptedException {
        String result = switch (arguments[0]) {
            case "acknowledge" -> acknowledge(arguments);
            case "workers" -> workers(arguments);
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        System.out.println(result);
        System.exit(0);
    }

    private static KafkaShareConsumer<byte[], byte[]> consumer(String[] arguments, String mode) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[1],
                "group.id", arguments[3],
                "share.acknowledgement.mode", mode);
        var made = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        made.subscribe(List.of(arguments[2]));
        return made;
    }

    // Every record is acknowledged by a call of its own; what was acknowledged rides on the next poll. The clock
    // starts behind the first quarter: before that the compiler of this JVM is at work, and the group forms.
    private static String acknowledge(String[] arguments) {
        long wanted = Long.parseLong(arguments[4]);
        long warmUp = wanted / 4;
        long taken = 0;
        long began = 0;
        long takenThen = 0;
        long last = System.nanoTime();
        try (var consumer = consumer(arguments, "explicit")) {
            while (taken < wanted) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                long now = System.nanoTime();
                if (records.isEmpty()) {
                    if (now - last > STALL_NS) {
                        throw new IllegalStateException("no record for a minute, after " + taken);
                    }
                    continue;
                }
                last = now;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                taken += records.count();
                if (began == 0 && taken >= warmUp) {
                    began = System.nanoTime();
                    takenThen = taken;
                }
            }
            last = System.nanoTime();
        }
        return String.format(Locale.ROOT, "{\"records\": %d, \"elapsed_s\": %.6f}", taken - takenThen, (last - began) / 1e9);
    }

    // Each worker is a consumer with default settings that takes its time for each record.
    private static String workers(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[4]);
        long workNs = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(arguments[5]));
        long warmUpNs = (long) (Double.parseDouble(arguments[6]) * 1e9);
        long measuredNs = (long) (Double.parseDouble(arguments[7]) * 1e9);
        var done = new LongAdder();
        var isOver = new AtomicBoolean();
        var busy = new AtomicInteger();
        var first = new CountDownLatch(1);
        for (int number = 0; number < count; number++) {
            var thread = new Thread(() -> {
                boolean isBusy = false;
                try (var consumer = consumer(arguments, "implicit")) {
                    while (!isOver.get()) {
                        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                            if (isOver.get()) {
                                return;
                            }
                            if (!isBusy) {
                                isBusy = true;
                                busy.incrementAndGet();
                                first.countDown();
                            }
                            work(workNs);
                            done.increment();
                        }
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        if (!first.await(STALL_NS, TimeUnit.NANOSECONDS)) {
            throw new IllegalStateException("no record for a minute");
        }
        TimeUnit.NANOSECONDS.sleep(warmUpNs);
        long before = done.sum();
        long began = System.nanoTime();
        TimeUnit.NANOSECONDS.sleep(measuredNs);
        long records = done.sum() - before;
        double elapsedS = (System.nanoTime() - began) / 1e9;
        isOver.set(true);
        return String.format(
                Locale.ROOT, "{\"records\": %d, \"elapsed_s\": %.6f, \"busy\": %d}", records, elapsedS, busy.get());
    }

    private static void work(long nanos) {
        long until = System.nanoTime() + nanos;
        for (long left = nanos; left > 0; left = until - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
