import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

/** Prints every setting that Kafka defines for brokers and topics: scope, name, type, default, update mode. */
public class KafkaSettings {
    public static void main(String[] arguments) {
        print("broker", kafka.server.KafkaConfig.configDef());
        print("topic", org.apache.kafka.storage.internals.log.LogConfig.configDefCopy());
    }

    private static void print(String scope, ConfigDef definition) {
        var modes = org.apache.kafka.server.config.DynamicBrokerConfig.dynamicConfigUpdateModes();
        new TreeMap<>(definition.configKeys()).forEach((name, key) -> {
            String value = key.hasDefault() && key.defaultValue != null
                ? ConfigDef.convertToString(key.defaultValue, key.type) : "";
            String mode = modes.getOrDefault(name, "read-only");
            System.out.println(String.join("\t", scope, name, key.type.name(), value, mode));
        });
    }
}
